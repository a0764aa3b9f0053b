"""Make ``torch.compile`` honour ``nn.Module`` hooks as eager does.

The seams patched into Dynamo import the submodules of this package by name and
nothing else. Data flows one way: seams -> ``variables`` and ``call_impl`` ->
``guards`` -> ``state``; nothing here may be imported by ``torch.nn``.
"""
