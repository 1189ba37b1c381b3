"""Data sets for experiments, read from their public formats; nothing is downloaded or unpickled.

The readers are our own: Hugging Face's ``datasets`` reads folders of images and tables too, but copies them into a
cache first, and would replace no more than the twenty lines that list them; torchvision unpickles CIFAR.
"""
