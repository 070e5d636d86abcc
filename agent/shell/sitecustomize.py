"""First on PYTHONPATH of ranks under `--in-place`: has regroup.inplace imported as soon as the script has imported PyTorch.

Nothing else changes: the sitecustomize that this one stands before is run, and sys.path and PYTHONPATH become as the
script would have them. Where no package `regroup` is installed, ranks are started anew, as without `--in-place`.
"""
import importlib.machinery
import importlib.util
import os
import sys
import types


def _step_aside():
    here, path = os.environ.pop("REGROUP_SITE", ""), os.environ.get("PYTHONPATH", "")
    sys.path[:] = [folder for folder in sys.path if folder != here]
    if path == here:
        os.environ.pop("PYTHONPATH", None)
    elif path.startswith(here + os.pathsep):
        os.environ["PYTHONPATH"] = path[len(here) + 1:]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        sys.modules["sitecustomize"] = types.ModuleType("sitecustomize")
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


class _AfterTorch:
    """A finder that is asked once: for `torch`, whose loader it wraps."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                _import_in_place()
            spec.loader.exec_module = exec_module
        return spec


def _import_in_place():
    """A package that is not there, or is older, costs the script nothing: PyTorch itself is imported all the same."""
    try:
        import regroup.inplace  # noqa: F401 (it changes torch.distributed)
    except Exception as error:
        if os.environ.get("REGROUP_LOCAL_RANK") == "0" and sys.stderr is not None:
            print(f"regroup: --in-place: {type(error).__name__}: {error}; so ranks are started anew", file=sys.stderr)


sys.meta_path.insert(0, _AfterTorch())
_step_aside()
