"""The rows of pretrained models with synthetic data and weights in exactly the formats of the real ones."""

import json
from dataclasses import replace

import torch
import torch.nn.functional as F

from experiments.data.cifar import cifar100 as cifar100_reader
from experiments.data.image_files import Padded
from experiments.data.imagenet import SAMPLE
from experiments.data.vqav2 import VOCABULARY
from experiments.experiment import Sources
from experiments.models.beit3 import Beit3ForPairs, Beit3ForQuestions
from experiments.models.features import save_tokens
from experiments.models.resnet import ResNet
from experiments.pretraining import pretrained
from experiments.rows import imagenet_resnet50, starting_points, vqav2_rows
from experiments.rows import nlvr2_beit3 as nlvr2_beit3_row
from experiments.rows.cifar100_vit import CIFAR100_VIT
from experiments.rows.daquar_fusion import TOKENS
from experiments.rows.imagenet_resnet50 import IMAGENET_RESNET50
from experiments.rows.imagenet_sample_resnet50 import IMAGENET_SAMPLE_RESNET50
from experiments.rows.nlvr2_beit3 import NLVR2_BEIT3
from experiments.rows.nlvr_multiway import NLVR_MULTIWAY
from experiments.rows.sst2_minilm import SST2_MINILM
from experiments.rows.vqav2_rows import VQAV2_BEIT3, VQAV2_VILT
from tests.experiments import hf_folders, keras_files, multimodal
from tests.experiments.data import formats, multimodal_files
from varprop.evaluation.methods import listed

METHODS = tuple(listed("mean,cvp"))
ONE_STEP = {"epochs": 1}
TINY = {"depths": (1, 1), "width": 4}
PHRASES = ["A good film.", "bad films", "good", "bad . bad", "a good good film", "films ."]


def shortened(experiment, **changes):
    """Two methods, and a calibration of one epoch."""
    recipe = replace(experiment.recipe, calibration=ONE_STEP, **changes)
    return replace(experiment, recipe=recipe, methods=METHODS)


def cifar100(folder, sizes=hf_folders.SIZES):
    """Two steps of two images, two held out, four tested."""
    formats.hundred_binary(folder / "cifar100")
    hf_folders.vit(folder / "vit", sizes)
    found = shortened(CIFAR100_VIT, epochs=1, batch=2, model={"classes": 100, "sizes": sizes})
    prepare = replace(CIFAR100_VIT.prepare, size=sizes["image_size"])
    splits = starting_points.splits(cifar100_reader, held_out=2)
    return replace(found, splits=splits, prepare=prepare), Sources(folder, folder / "vit")


def imagenet(folder, model=TINY):
    """A thousand classes with an image each, and a checkpoint of ivon-opt for seeds 0 and 1."""
    validation = folder / "imagenet" / "val"
    for number in range(1000):
        (validation / f"n{number:08}").mkdir(parents=True)
        formats.picture(16, 12, shade=number % 256).save(validation / f"n{number:08}" / "image.JPEG")
    (folder / "weights").mkdir()
    for seed in (0, 1):
        torch.save(ivon_checkpoint(seed, model), folder / "weights" / f"resnet50-seed{seed}.pt")
    found = shortened(IMAGENET_RESNET50, model=model)
    return replace(found, splits=imagenet_resnet50.splits(held_out=4)), Sources(folder, folder / "weights")


def ivon_checkpoint(seed, options):
    """What training with ivon-opt leaves: two steps, at a size that does not matter to a ResNet."""
    import ivon

    torch.manual_seed(seed)
    model = ResNet(**options).train()
    optimizer = ivon.IVON(model.parameters(), lr=0.1, ess=1e7, weight_decay=1e-4, hess_init=0.05, beta2=0.9)
    for _ in range(2):
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(4, 3, 32, 32)), torch.arange(4)).backward()
        optimizer.step()
    return {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 2}


def imagenet_sample(folder, count=20):
    """Divided into 6, 6 and 8."""
    images = [formats.encoded(formats.picture(256, 256, shade=12 * number)) for number in range(count)]
    formats.image_pack(folder / SAMPLE, images, [number % keras_files.CLASSES for number in range(count)])
    (folder / "weights").mkdir()
    keras_files.write(folder / "weights", keras_files.weights())
    return shortened(IMAGENET_SAMPLE_RESNET50), Sources(folder, folder / "weights")


def sst2(folder):
    """Twelve steps of two phrases, six held out; the three test sentences have labels."""
    lines = [f"{'good' in phrase:d}\t{phrase}\n" for phrase in PHRASES]
    texts = {"train.tsv": lines * 4, "dev.tsv": lines, "test.tsv": lines[:3]}
    formats.glue(folder / "sst2", {name: "label\tsentence\n" + "".join(part) for name, part in texts.items()})
    hf_folders.bert(folder / "bert")
    return shortened(SST2_MINILM, epochs=1, batch=2), Sources(folder, folder / "bert")


def vqav2_beit3(folder, sizes=multimodal.BEIT3, classes=2):
    """Four steps of two questions, two held out, sixteen tested."""
    _asked(folder, classes)
    _beit3_folder(folder / "beit3", Beit3ForQuestions(classes=3, **sizes))
    found = shortened(VQAV2_BEIT3, epochs=1, batch=2, model={"classes": classes, **sizes})
    splits = vqav2_rows.splits(found.name, vqav2_rows.beit3_columns(sizes["img_size"]), classes)
    return replace(found, splits=splits), Sources(folder, folder / "beit3")


def vqav2_vilt(folder, sizes=multimodal.VILT, classes=2, view=None):
    """The same questions, about images that are padded."""
    _asked(folder, classes)
    hf_folders.vilt(folder / "vilt", **sizes)
    found = shortened(VQAV2_VILT, epochs=1, batch=2, model={"classes": classes})
    splits = vqav2_rows.splits(found.name, vqav2_rows.vilt_columns(view or Padded(short=64, long=96)), classes)
    return replace(found, splits=splits), Sources(folder, folder / "vilt")


def nlvr2_beit3(folder, sizes=multimodal.BEIT3):
    """A step of two statements, four held out, three tested."""
    stated = {"train": ["True", "False", "True"], "dev": ["False", "True"] * 2, "test1": ["True", "False", "True"]}
    multimodal_files.nlvr2(folder / "nlvr2", stated)
    _beit3_folder(folder / "beit3", Beit3ForPairs(**sizes))
    found = shortened(NLVR2_BEIT3, epochs=1, batch=2, model={"classes": 2, **sizes})
    splits = nlvr2_beit3_row.splits(sizes["img_size"])
    return replace(found, splits=splits), Sources(folder, folder / "beit3")


def _asked(folder, classes):
    multimodal_files.vqav2(folder / "vqav2")
    answers = ["2", "no", *map(str, range(9, 9999))]
    lines = [json.dumps({"answer": answer, "label": i}) for i, answer in enumerate(answers[:classes])]
    (folder / "vqav2" / VOCABULARY).write_text("\n".join(lines))


def _beit3_folder(folder, model):
    folder.mkdir()
    hf_folders.tokenizer(folder)
    torch.save({"model": model.state_dict()}, folder / "beit3_base_patch16_224.pth")


def daquar(folder, experiment):
    """Ten images with four questions each: five are trained on, two held out, three tested."""
    multimodal_files.daquar(folder / "daquar", images=10)
    hf_folders.bert(folder / "bert")
    generator = torch.Generator().manual_seed(0)
    save_tokens(folder / "daquar" / TOKENS, torch.randn(10, 6, 8, generator=generator).half())
    model = {"features": 8, "tokens": 6, "classes": 3}
    return shortened(experiment, epochs=1, batch=4, model=model), Sources(folder, folder / "bert")


def nlvr(folder):
    """Four pairs of statements in each part; two of those of dev and hidden are held out."""
    multimodal_files.nlvr(folder / "nlvr")
    hf_folders.bert(folder / "bert")
    found, sources = shortened(NLVR_MULTIWAY, epochs=1, batch=8), Sources(folder, folder / "bert")
    stages = (replace(stage, count=16, recipe=replace(stage.recipe, epochs=1, batch=8)) for stage in found.pretraining)
    found = replace(found, pretraining=tuple(stages))
    return found, pretrained(found, sources, folder / "pretraining", "cpu", progress=False)
