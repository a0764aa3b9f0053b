"""Tools that turn a pinned PyTorch release into the torch-hooks wheel.

`python -m tools VERB` is the only entry point people need; `setup.py` and the
PEP 517 backend call the same functions. Nothing in here imports torch.
"""
