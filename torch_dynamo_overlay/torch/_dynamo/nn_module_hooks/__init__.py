"""Make ``torch.compile`` honour ``nn.Module`` hooks as eager does.

The seams patched into Dynamo import the submodules of this package by name and
nothing else; users import ``hook_policy``. Data flows one way: seams ->
``variables`` and ``call_impl`` -> ``guards`` -> ``state``; nothing here may be
imported by ``torch.nn``.
"""

from .policy import hook_policy


__all__ = ["hook_policy"]
