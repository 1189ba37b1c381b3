"""Small files in exactly the formats of VQAv2 with COCO's images, of NLVR2, of DAQUAR and of NLVR."""

import gzip
import io
import json

import numpy as np

from experiments.data.vqav2 import ANNOTATIONS, PARTS, QUESTIONS
from tests.experiments.data.formats import encoded, picture

# The answers of ten people, with how many gave each; "2" is frequent in the two parts together, "a sofa" is not.
ASKED = {
    "train2014": [("How many cats are there?", {"2": 7, "two": 1, "3": 2})] * 9 + [("What is it?", {"a sofa": 10})],
    "val2014": [("Is it red?", {"yes": 4, "no": 6})] * 9 + [("Is it RED, then?", {"yes": 2, "no": 8})] * 9,
}
STATED = {"train": ["True", "False", "True"], "dev": ["False", "True"], "test1": ["True", "False"]}


def vqav2(folder, asked=None):
    """Question number i of a part is about an image of its own, 640×480 or upright or smaller."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        (folder / part).mkdir()
        questions, annotations = [], []
        for i, (text, given) in enumerate((asked or ASKED)[part]):
            image, number = 9 + i, 1000 * (9 + i)
            size = [(64, 48), (48, 64), (64, 64)][i % 3]
            picture(*size, shade=10 * i % 256).save(folder / part / f"COCO_{part}_{image:012}.jpg")
            answers = [answer for answer, count in given.items() for _ in range(count)]
            questions.append({"image_id": image, "question": text, "question_id": number})
            annotations.append(
                {
                    "question_type": "how many",
                    "multiple_choice_answer": max(given, key=given.get),
                    "answers": [
                        {"answer": answer, "answer_confidence": "yes", "answer_id": j}
                        for j, answer in enumerate(answers, 1)
                    ],
                    "image_id": image,
                    "answer_type": "number",
                    "question_id": number,
                }
            )
        info = {"info": {"version": "2.0", "year": 2017}, "license": {}, "data_type": "mscoco", "data_subtype": part}
        (folder / QUESTIONS[part]).write_text(json.dumps({**info, "task_type": "Open-Ended", "questions": questions}))
        # In another order: questions and annotations belong together by their numbers.
        (folder / ANNOTATIONS[part]).write_text(json.dumps({**info, "annotations": annotations[::-1]}))
    return folder


def nlvr2(folder, stated=None):
    folder.mkdir(parents=True, exist_ok=True)
    for part, labels in (stated or STATED).items():
        lines = []
        for i, label in enumerate(labels):
            line = {
                "validation": {"72": label},
                "sentence": f"The left image shows {i} dogs.",
                "left_url": "https://example.org/a.jpg",
                "right_url": "https://example.org/b.jpg",
                "writer": "60",
                "label": label,
                "identifier": f"{part}-{i}-0-0",
                "synset": "saluki, gazelle hound",
                "query": "salukis7",
            }
            place = folder / "images" / part
            if part == "train":
                line["directory"] = i % 2
                place = place / str(i % 2)
            place.mkdir(parents=True, exist_ok=True)
            for side in (0, 1):
                picture(40, 30, shade=40 * i + 9 * side).save(place / f"{part}-{i}-0-img{side}.png")
            lines.append(json.dumps(line) + "\n")
        (folder / f"{part}.json").write_text("".join(lines))
    return folder


def daquar(folder, images=3, questions=(("what is on the bed", "pillow, toy"), ("how many beds are there", "2"))):
    folder.mkdir(parents=True, exist_ok=True)
    parts = [encoded(picture(295, 224, shade=50 * i % 256)) for i in range(images)]
    ends, names = np.cumsum([len(part) for part in parts]), np.array([f"image{i}" for i in range(images)])
    np.savez(folder / "images.npz", images=np.frombuffer(b"".join(parts), np.uint8), ends=ends, names=names)
    lines = [f'{text},"{answer}",image{i}\n' for i in range(images) for text, answer in questions]
    for name in ("train.csv", "eval.csv"):
        (folder / name).write_text("question,answer,image_id\n" + "".join(lines))
    (folder / "answers.txt").write_text("2\npillow\ntable")
    return folder


def shape(kind="square", x=10, y=80, size=20, colour="Yellow"):
    return {"y_loc": y, "size": size, "type": kind, "x_loc": x, "color": colour}


def nlvr(folder, count=8):
    """Statement i has the votes of five people in dev and test; those of hidden are not published."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("dev", "test", "hidden"):
        lines = []
        for i in range(count):
            boxes = [
                [shape(size=10 * (1 + j), colour=c) for j in range(1 + i % 3)] for c in ("Yellow", "Black", "#0099ff")
            ]
            votes = {f"r{j}": "true" if j <= i % 5 else "false" for j in range(5)}
            label = "true" if i % 5 >= 2 else "false"
            line = {"sentence": f"There are {i % 3} blocks", "identifier": f"{i // 2}-{i % 2}", "label": label}
            line |= {"structured_rep": boxes} | ({} if part == "hidden" else {"directory": "2", "evals": votes})
            lines.append(json.dumps(line) + "\n")
        (folder / f"{part}.json.gz").write_bytes(gzip.compress("".join(lines).encode()))
    return folder


def edited(path, change):
    """A JSON file, with what ``change`` makes of it."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def image_bytes(image):
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()
