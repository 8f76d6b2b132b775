"""Clusters: the same artifacts wherever tasks run, also when workers die; clear errors where they cannot run."""

import contextlib
import errno
import hashlib
import importlib.util
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path
from types import SimpleNamespace

import dask
import numpy as np
import pytest

from gigabatch.features.synthetic.trivago import write_synthetic_log
from gigabatch.pipeline.config.config import ClusterSettings, ConfigError, parse_config
from gigabatch.pipeline.stages.cluster import Cluster, ClusterError, DaskCluster, _lost, cuda_arguments, open_cluster
from gigabatch.pipeline.stages.stages import Pipeline
from tests.examples import THOROUGH

ROOT = Path(__file__).resolve().parents[3]
# Dask and tornado close sockets and loops of lost workers in their own time.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
SPLITS = ("train", "valid", "test")


def pipeline_of(log, artifacts, *overrides):
    # Many more parts than workers.
    settings = (f"features.path={log}", f"artifacts={artifacts}", "rows_per_part=1600", "engine=pandas", "device=cpu")
    return Pipeline.from_config(ROOT / "conf" / "trivago.yaml", *settings, *overrides)


def contents(encoded):
    """Checksum by split and column: ids as the values that they stand for, floats and labels as their bits."""
    preprocessor, found = encoded.preprocessor, {}
    for split in SPLITS:
        table = encoded.table(split)
        words = table.words.numpy()
        for place, column in enumerate(table.schema.ids):
            values = preprocessor.vocabularies[column.name].decode(np.array(words[:, place]))
            kinds = np.minimum(words[:, place], 3)  # padding, null and unseen all decode to null
            text = json.dumps([values.astype("str").fillna("").tolist(), kinds.tolist()])
            found[split, column.name] = hashlib.md5(text.encode()).hexdigest()
        rest = np.ascontiguousarray(words[:, len(table.schema.ids) :])
        found[split, "the rest"] = hashlib.md5(rest.tobytes()).hexdigest()
    return found


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log")
    write_synthetic_log(path, rows=4_000, seed=3)
    return path


@pytest.fixture(scope="module", autouse=True)
def _settled_sources():
    """Keys hold a hash of the sources, which somebody may be writing at while a cluster starts."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("asked", "stages"):
            patch.setattr(f"gigabatch.pipeline.stages.{module}.source_hash", lambda modules: "sources")
        yield


@pytest.fixture(scope="module")
def in_process(log, tmp_path_factory):
    """(contents of the encoded tables, key of the features, key of the encoded tables) without a cluster."""
    features = pipeline_of(log, tmp_path_factory.mktemp("artifacts")).features()
    encoded = features.encode()
    assert len(features.parts("train")) > 4
    return contents(encoded), features.artifact.key, encoded.artifact.key


def assert_as_in_process(features, in_process):
    encoded = features.encode()
    assert contents(encoded) == in_process[0]
    assert (features.artifact.key, encoded.artifact.key) == in_process[1:]
    for artifact in (features.artifact, encoded.artifact):
        assert list(artifact.path.rglob(".*")) == []


@pytest.mark.slow
def test_two_local_workers_make_the_artifacts_of_this_process(log, in_process, tmp_path):
    settings = ("cluster=local", "cluster_settings.workers=2", "cluster_settings.threads_per_worker=1")
    assert_as_in_process(pipeline_of(log, tmp_path, *settings).features(), in_process)


@pytest.fixture
def scheduler(tmp_path, monkeypatch):
    """The address of `dask scheduler` with two `dask worker` processes, none of which knows this one's folder."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    processes = []
    for name in ("CONNECT_SECONDS", "WORKER_SECONDS"):  # both start only now
        monkeypatch.setattr(f"gigabatch.pipeline.stages.cluster.{name}", 300)

    def start(*arguments):
        command = [sys.executable, "-m", "dask", *arguments]
        with open(tmp_path / f"dask-{len(processes)}.log", "w") as out:
            processes.append(subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=out, stderr=out))

    try:
        start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", "scheduler.json")
        deadline, address = time.monotonic() + 300, None
        while address is None:
            assert time.monotonic() < deadline, (tmp_path / "dask-0.log").read_text()
            time.sleep(0.1)
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):  # not there yet, or half written
                address = json.loads((tmp_path / "scheduler.json").read_text())["address"]
        for _ in range(2):
            start("worker", address, "--nthreads", "1", "--no-dashboard", "--local-directory", str(tmp_path / "work"))
        yield address
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(timeout=120)


DEATHS = {"gather_chunk": "before", "write_chunk": "after", "pack_part": "before"}


def dying(function, folder):
    """`function`, but the worker that takes up the third task of its kind is killed: before it has done anything, or
    when all of it is done and nobody has been told."""
    name = function.__name__

    def call(task):
        (folder / f"{name}-{os.urandom(8).hex()}").touch()
        dies = not (folder / name).exists() and len(list(folder.glob(f"{name}-*"))) >= 3
        if dies and DEATHS.get(name) == "before":
            (folder / name).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(task)
        if dies and DEATHS.get(name) == "after":
            (folder / name).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return call


@pytest.mark.slow
def test_workers_killed_in_the_middle_change_nothing(log, in_process, scheduler, tmp_path, monkeypatch):
    folder = tmp_path / "deaths"
    folder.mkdir()
    for name in ("map", "in_turn"):
        real = getattr(DaskCluster, name)
        monkeypatch.setattr(
            DaskCluster, name, lambda self, function, tasks, real=real: real(self, dying(function, folder), tasks)
        )
    assert_as_in_process(pipeline_of(log, tmp_path / "artifacts", f"cluster={scheduler}").features(), in_process)
    assert {name for name in DEATHS if (folder / name).exists()} == set(DEATHS)


ENDS = "connecting", "closed"
WAYS = {
    "map": lambda cluster, function, tasks: cluster.map(function, tasks),
    "in turn": lambda cluster, function, tasks: list(cluster.in_turn(function, tasks)),
    # As a preprocessor and a workflow are fitted.
    "Dask's own": lambda cluster, function, tasks: dask.compute(
        *map(dask.delayed(function), tasks), scheduler=cluster.scheduler
    ),
}


def kill_own_process(task):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_task_that_kills_its_workers_is_one_line_however_it_is_handed_out(tmp_path, way):
    def work(cluster):
        cluster.client.cluster.scheduler.allowed_failures = 0  # else four workers die in turn
        WAYS[way](cluster, kill_own_process, [1])

    settings = ClusterSettings(workers=1, threads_per_worker=1)
    with (
        pytest.raises(ClusterError, match=r"each of them died .*memory_limit"),
        open_cluster("local", settings, tmp_path) as cluster,
    ):
        work(cluster)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_scheduler_that_ends_in_the_middle_is_one_line(scheduler, tmp_path, way, monkeypatch):
    # For so long what is handed out after the end waits for the scheduler to come back.
    monkeypatch.setattr("gigabatch.pipeline.stages.cluster.CONNECT_SECONDS", 30)

    def work(cluster):
        threading.Timer(1, os.kill, (cluster.client.run_on_scheduler(os.getpid), signal.SIGKILL)).start()
        WAYS[way](cluster, time.sleep, [0.3] * 60)

    with (
        pytest.raises(ClusterError, match=r"scheduler of cluster=tcp://.* has ended, .*run again"),
        open_cluster(scheduler, ClusterSettings(), tmp_path) as cluster,
    ):
        work(cluster)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "status"),
    [(way, status) for place, way in enumerate(WAYS) for status in ENDS if THOROUGH or status == ENDS[place % 2]],
)
def test_a_scheduler_that_ends_while_this_process_works_is_one_line(scheduler, tmp_path, way, status, monkeypatch):
    """What is handed out next meets another error of Dask's, by what its client has noticed."""
    monkeypatch.setattr("gigabatch.pipeline.stages.cluster.CONNECT_SECONDS", 10)

    def work(cluster):
        cluster.client.wait_for_workers(2)  # one that seeks the scheduler in vain would not end at the test's end
        os.kill(cluster.client.run_on_scheduler(os.getpid), signal.SIGKILL)
        while cluster.client.status != status:
            time.sleep(0.01)
        WAYS[way](cluster, time.sleep, [0.1])

    with (
        pytest.raises(ClusterError, match=r"scheduler of cluster=tcp://.* has ended, .*run again"),
        open_cluster(scheduler, ClusterSettings(), tmp_path) as cluster,
    ):
        work(cluster)


@pytest.mark.parametrize(
    ("status", "error", "lost"),
    [
        ("running", OSError("mine"), False),
        ("running", AttributeError("mine"), False),
        ("running", CancelledError("mine"), False),
        ("connecting", OSError(errno.ENOSPC, "full"), False),
        ("connecting", ValueError("mine"), False),
        ("connecting", OSError("Timed out trying to connect"), True),
        ("closed", AttributeError("'NoneType' object has no attribute 'ncores'"), True),
    ],
)
def test_an_error_of_ones_own_is_no_lost_scheduler(status, error, lost):
    with (
        pytest.raises(ClusterError if lost else type(error), match=str(error.args[-1])),
        _lost("tcp://a:1", SimpleNamespace(status=status)),
    ):
        raise error


@pytest.mark.slow
def test_a_local_worker_that_ends_before_it_answers_is_one_line(tmp_path):
    def kill_first():
        while not (started := multiprocessing.active_children()):
            time.sleep(0.01)
        started[0].kill()

    killer = threading.Thread(target=kill_first)
    killer.start()
    with pytest.raises(ClusterError, match=r"a worker ended while it was started \(Nanny failed to start.*__main__"):
        opened("local", tmp_path)
    killer.join()


@pytest.mark.slow
def test_workers_that_end_late_take_nothing_back(tmp_path, monkeypatch, caplog):
    from distributed import LocalCluster

    close = LocalCluster.close

    def late(made, *arguments, **settings):
        close(made, *arguments, **settings)
        raise TimeoutError  # as Dask's nanny does on a busy machine

    monkeypatch.setattr(LocalCluster, "close", late)
    with open_cluster("local", ClusterSettings(workers=1, threads_per_worker=1), tmp_path) as cluster:
        found = cluster.map(abs, [-1, -2])
    assert found == [1, 2]
    assert "workers have not ended in time" in caplog.text
    with pytest.raises(ValueError, match="mine"), open_cluster("local", ClusterSettings(workers=1), tmp_path):
        raise ValueError("mine")


@pytest.mark.slow
@pytest.mark.parametrize(("level", "told"), [("", False), ("info", True)])
def test_lines_of_dask_are_told_where_its_configuration_asks(tmp_path, level, told):
    """Beside a handler of the program's own, as the command line has one, 35 lines of workers stood in a run."""
    script = (
        "import logging, pathlib\n"
        "from gigabatch.pipeline.config.config import ClusterSettings\n"
        "from gigabatch.pipeline.stages.cluster import open_cluster\n"
        "if __name__ == '__main__':\n"
        "    logging.basicConfig(level=logging.INFO, format='%(name)s %(message)s')\n"
        "    settings = ClusterSettings(workers=1, threads_per_worker=1)\n"
        "    with open_cluster('local', settings, pathlib.Path('.').resolve()) as cluster:\n"
        "        assert cluster.map(abs, [-1]) == [1]\n"
    )
    (tmp_path / "own.py").write_text(script)
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | ({"DASK_LOGGING__DISTRIBUTED": level} if level else {})
    done = subprocess.run(
        [sys.executable, "own.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert ("Register worker" in done.stderr) == ("distributed" in done.stderr) == told


@pytest.mark.slow
def test_what_keeps_local_workers_from_being_started_is_said_first(tmp_path):
    """Each such error was called the end of a worker."""
    (tmp_path / "file").touch()
    with (
        dask.config.set({"temporary-directory": str(tmp_path / "file")}),
        pytest.raises(
            ClusterError, match=rf"^cluster: \w+: \[Errno \d+\] .*{tmp_path}/file.*workers could not be started"
        ),
    ):
        opened("local", tmp_path)


def test_what_keeps_the_workers_of_gpus_from_being_started_is_said_first(tmp_path, monkeypatch):
    def fails(**_):
        try:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        except OSError as error:
            raise RuntimeError("Cluster failed to start") from error

    monkeypatch.setitem(sys.modules, "dask_cuda", SimpleNamespace(LocalCUDACluster=fails))
    monkeypatch.setattr("gigabatch.pipeline.stages.cluster.importlib.util.find_spec", lambda _: True)
    with pytest.raises(ClusterError, match=r"^cluster: OSError: \[Errno 24\] Too many open files\. So its workers"):
        opened("cuda", tmp_path)


def test_threads_of_this_process_give_results_in_order():
    cluster = Cluster(3)
    assert cluster.scheduler.args == (3,)
    assert not cluster.distributed

    def slow_start(number):
        time.sleep(0.05 if number == 0 else 0)
        return number * number

    assert cluster.map(slow_start, range(20)) == [number * number for number in range(20)]
    assert list(cluster.in_turn(slow_start, range(5))) == [0, 1, 4, 9, 16]
    assert cluster.map(slow_start, []) == []


def test_threads_of_this_process_load_no_client_of_a_cluster():
    """Whose import takes .2 s, which a nightly job that finds little to do would notice."""
    code = "import sys; from gigabatch.pipeline.stages.cluster import Cluster; print(Cluster(2).map(abs, [-1, 2]))"
    code += "; print('distributed' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:2] == ["[1, 2]", "False"], done.stderr


def test_results_asked_for_in_turn_are_not_made_all_at_once():
    made = []
    taken = Cluster(2).in_turn(made.append, range(100))
    next(taken)
    assert len(made) <= 2


def opened(name, folder):
    with open_cluster(name, ClusterSettings(), folder):
        pass


def test_a_scheduler_that_does_not_answer_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("gigabatch.pipeline.stages.cluster.CONNECT_SECONDS", 0.5)
    with pytest.raises(ClusterError, match=r"no Dask scheduler answers at tcp://127.0.0.1:9 .*dask scheduler"):
        opened("tcp://127.0.0.1:9", tmp_path)


def test_a_scheduler_without_workers_is_named(tmp_path, monkeypatch):
    from distributed import LocalCluster

    with LocalCluster(n_workers=0, processes=False, dashboard_address=None, protocol="tcp") as empty:
        monkeypatch.setattr("gigabatch.pipeline.stages.cluster.WORKER_SECONDS", 0.5)
        with pytest.raises(
            ClusterError, match=r"has had no workers for 0\.5 seconds\. Start some with `dask worker tcp://"
        ):
            opened(empty.scheduler_address, tmp_path)


def test_workers_that_do_not_see_the_folder_are_named(tmp_path):
    class Blind:
        def run(self, function, path, on_error):
            return {"tcp://a:1": function(path), "tcp://b:2": False, "tcp://died:3": OSError("gone")}

    with pytest.raises(ClusterError, match=r"worker\(s\) tcp://b:2 do not see .*`artifacts`"):
        DaskCluster(Blind()).require_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_workers_with_another_gigabatch_are_named():
    """They made artifacts that have the key of this process's sources."""

    class Older:
        def run(self, function, on_error):
            without = Exception("AttributeError(\"Can't get attribute 'own_sources'\")")  # as Dask tells of it
            return {"tcp://a:1": function(), "tcp://b:2": "0" * 32, "tcp://c:3": without, "tcp://d:4": OSError("gone")}

    with pytest.raises(ClusterError, match=r"worker\(s\) tcp://b:2, tcp://c:3 have another gigabatch .* start them"):
        DaskCluster(Older()).require_same_sources()


@pytest.mark.skipif(importlib.util.find_spec("dask_cuda") is not None, reason="dask-cuda is installed")
def test_cuda_without_its_package_is_refused(tmp_path):
    with pytest.raises(ClusterError, match="needs the package dask-cuda, which is not installed"):
        opened("cuda", tmp_path)


def test_settings_are_checked():
    raw = {"name": "x", "recipe": "trivago"}
    assert parse_config(raw).cluster == "none"
    assert parse_config(raw | {"cluster": "tcp://box:8786"}).cluster == "tcp://box:8786"
    for wrong in ("loacl", "tcp://box", "udp://box:1"):
        with pytest.raises(ConfigError, match=r"cluster: .*found '" + wrong):
            parse_config(raw | {"cluster": wrong})
    with pytest.raises(ConfigError, match=r"'cluster_settings.worker'. Did you mean 'cluster_settings.workers'"):
        parse_config(raw | {"cluster_settings": {"worker": 2}})


def most_at_once(cluster, tasks):
    """How many tasks of `cluster.map` ran at the same time, at most."""
    running, most, lock = [0], [0], threading.Lock()

    def task(_):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.02)
        with lock:
            running[0] -= 1

    cluster.map(task, range(tasks))
    return most[0]


@pytest.mark.parametrize(("engine", "expected"), [("pandas", 3), ("cudf", 1), ("cudf_plain", 1)])
def test_a_gpu_holds_one_partition_at_a_time(tmp_path, engine, expected):
    with open_cluster("none", ClusterSettings(threads=3), tmp_path, engine) as cluster:
        assert most_at_once(cluster, 9) == expected


def test_every_stage_says_which_engine_its_tasks_use(log, tmp_path, monkeypatch):
    pipeline = pipeline_of(log, tmp_path)
    pipeline.engine = "cudf"
    with pipeline.cluster(tmp_path) as cluster:
        assert most_at_once(cluster, 6) == 1


def test_workers_that_would_share_a_gpu_are_refused(tmp_path):
    with (
        pytest.raises(ClusterError, match="workers of `local` would share one GPU"),
        open_cluster("local", ClusterSettings(workers=2), tmp_path, "cudf"),
    ):
        pass


def test_a_worker_of_a_scheduler_with_several_threads_is_refused_on_a_gpu(tmp_path):
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None, protocol="tcp"
    ) as running:
        with (
            pytest.raises(ClusterError, match=r"run several tasks at once.*--nthreads 1"),
            open_cluster(running.scheduler_address, ClusterSettings(), tmp_path, "cudf"),
        ):
            pass
        with open_cluster(running.scheduler_address, ClusterSettings(), tmp_path) as cluster:
            assert cluster.map(abs, [-1]) == [1]


def test_a_gpu_worker_runs_one_task_and_has_one_capped_pool():
    found = cuda_arguments(ClusterSettings(workers=3, memory_limit="4GiB"))
    assert (found["n_workers"], found["threads_per_worker"], found["memory_limit"]) == (3, 1, "4GiB")
    assert (found["rmm_async"], found["rmm_maximum_pool_size"]) == (True, 0.8)
    with pytest.raises(ClusterError, match="threads_per_worker asks for 2"):
        cuda_arguments(ClusterSettings(threads_per_worker=2))
