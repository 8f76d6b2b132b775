"""What the memory pool and the CUDA cluster ask of RMM, CuPy and dask-cuda, against the real packages."""

import ast
import importlib.util
import inspect
from pathlib import Path

import cudf
import cupy
import pytest
import rmm

from gigabatch.features.engines import rapids_memory
from gigabatch.pipeline.config.config import ClusterSettings
from gigabatch.pipeline.stages.cluster import cuda_arguments
from tests.cudf_api.refusals import Stand, refusal

SOURCE = ast.parse(Path(rapids_memory.__file__).read_text())


def named(root):
    """Dotted names of the source below a name such as `rmm`."""
    texts = {ast.unparse(node) for node in ast.walk(SOURCE) if isinstance(node, ast.Attribute)}
    return {text for text in texts if text.startswith(f"{root}.")}


def test_every_name_of_rmm_and_of_the_driver_is_there():
    assert len(named("rmm")) >= 5
    for text in named("rmm"):
        assert eval(text, {"rmm": rmm}) is not None
    asked = {text.partition(".")[2] for text in named("runtime")}
    assert len(asked) >= 6
    assert asked <= set(dir(cupy.cuda.runtime))
    assert cupy.cuda.get_allocator().__name__ == "rmm_cupy_allocator"  # `import cudf` has set it
    assert cudf.__version__


def declared(name):
    """The parameters of a compiled class of RMM after self, as its stub file declares them."""
    stub = Path(inspect.getfile(rmm)).parent / "pylibrmm" / "memory_resource" / "_memory_resource.pyi"
    kind = next(node for node in ast.parse(stub.read_text()).body if getattr(node, "name", "") == name)
    init = next(node for node in kind.body if getattr(node, "name", "") == "__init__")
    return [item.arg for item in init.args.args[1:]]


def test_the_compiled_classes_take_what_they_are_given():
    assert declared("CudaAsyncViewMemoryResource") == ["pool_handle"]
    assert declared("LimitingResourceAdaptor") == ["upstream_mr", "allocation_limit"]


def test_a_handle_of_cupys_becomes_one_of_the_driver():
    from cuda.bindings.runtime import cudaMemPool_t

    assert int(cudaMemPool_t(77)) == 77


def test_rmms_default_is_the_resource_that_may_be_replaced():
    assert type(rmm.mr.get_per_device_resource(0)) is rmm.mr.CudaMemoryResource


@pytest.mark.skipif(importlib.util.find_spec("dask_cuda") is None, reason="dask-cuda is not installed")
@pytest.mark.parametrize("settings", [ClusterSettings(), ClusterSettings(workers=2, memory_limit="4GiB")])
def test_the_cuda_cluster_takes_its_arguments(settings):
    from dask_cuda import LocalCUDACluster

    arguments = cuda_arguments(settings)
    assert set(arguments) - {"dashboard_address"} <= set(inspect.signature(LocalCUDACluster).parameters)
    assert refusal(LocalCUDACluster.__init__, (Stand(LocalCUDACluster),), arguments) is None
    wrong = refusal(LocalCUDACluster.__init__, (Stand(LocalCUDACluster),), arguments | {"rmm_pool_size": "1GB"})
    assert "rmm_async" in wrong or "msg" in wrong
