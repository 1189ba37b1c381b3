"""Where people are: scikit-learn, Hugging Face, Lightning, Matplotlib. Each file needs its own package, none is loaded
before it is asked for.
"""
