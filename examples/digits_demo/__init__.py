"""The parts of ``examples/digits.py``: model, run, scenarios, Grad-CAM, report.

Data flows one way: ``scenarios`` play on a ``run``, ``comparison`` judges two plays,
``report`` shows the verdicts. Nothing here needs our build of PyTorch, so that the
same program can be run by the official release.
"""
