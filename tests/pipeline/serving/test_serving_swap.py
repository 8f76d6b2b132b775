"""Exchange of the bundle while requests go on: what is taken, what is refused, and that no request fails."""

import gc
import json
import logging
import shutil
import threading
import time
import weakref
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from gigabatch.pipeline.bundle import BundleError, load_bundle
from gigabatch.pipeline.config.serving import ServeSettings
from gigabatch.pipeline.embedding.embeddings import STAGE
from gigabatch.pipeline.serving.errors import ServingError
from gigabatch.pipeline.serving.metrics import Metrics
from gigabatch.pipeline.serving.served import load_served, self_test
from gigabatch.pipeline.serving.swap import RefusedBundle, Slot, Watcher
from gigabatch.pipeline.store.files import atomic_symlink
from tests.pipeline.serving.server_process import Server
from tests.pipeline.serving.small_bundles import random_bundle, write_embeddings, write_run

RANK = {"user": "u1", "items": [1001, 1002, 1003]}


def watcher(home, load=load_served) -> tuple[Watcher, Slot, Metrics]:
    slot, metrics = Slot(), Metrics()
    return Watcher(slot, [home / "current", home / "latest"], load, metrics, 0.02), slot, metrics


def swaps(metrics: Metrics) -> dict[str, float]:
    text = metrics.text().decode()
    return {o: float(text.split(f'swaps_total{{outcome="{o}"}} ')[1].split("\n")[0]) for o in ("taken", "refused")}


def test_the_first_link_that_exists_is_served(home):
    (home / "current").unlink()
    atomic_symlink(Path("second"), home / "latest")
    made, slot, _ = watcher(home)
    made.first()
    assert slot.served.bundle_id == "second"
    atomic_symlink(Path("first"), home / "current")  # the nightly job's first promotion
    assert made.look() is True
    assert slot.served.bundle_id == "first"


def test_new_embeddings_of_the_same_run_are_taken(home, frame):
    made, slot, _ = watcher(home)
    made.first()
    assert len(slot.served.ranker.users) == 40
    fewer = frame[frame["user_id"] != "u3"]
    write_embeddings(home / "first", slot.served.bundle, fewer, dtype="float16")
    assert made.look() is True
    assert len(slot.served.ranker.users) == 39
    assert slot.served.ranker.exact is False


def damaged_weights(second: Path) -> None:
    (second / "model" / "weights.safetensors").write_bytes(b"nothing")


def save_with(folder: Path, change: Callable[[Tensor], object]) -> None:
    """The bundle again, whole, its weights changed."""
    bundle = load_bundle(folder)
    with torch.no_grad():
        for weight in bundle.model.parameters():
            change(weight)
    bundle.save(folder)


def other_weights(second: Path) -> None:
    save_with(second / "model", lambda weight: weight.add_(1e-3))


def not_a_number(second: Path) -> None:
    shutil.rmtree(second / STAGE)
    save_with(second / "model", lambda weight: weight.fill_(float("nan")))


def no_embeddings(second: Path) -> None:
    shutil.rmtree(second / STAGE)


def damaged_vectors(second: Path) -> None:
    path = next((second / STAGE).glob("*/items/vectors.npy"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "harm", [damaged_weights, other_weights, not_a_number, no_embeddings, damaged_vectors, shutil.rmtree]
)
def test_a_broken_bundle_is_refused_and_the_old_one_goes_on(harm, home, caplog, make_caller):
    made, slot, metrics = watcher(home)
    made.first()
    harm(home / "second")
    atomic_symlink(Path("second"), home / "current")
    atomic_symlink(Path("first"), home / "latest")  # no substitute for what was promoted
    with caplog.at_level(logging.ERROR):
        assert made.look() is False
        assert made.look() is False
    assert slot.served.bundle_id == "first"
    assert swaps(metrics) == {"taken": 0, "refused": 1}
    assert len(caplog.records) == 1
    assert "refused, first goes on" in caplog.text
    caller = make_caller(slot.served)
    assert caller.post("/rank", RANK).status_code == 200


def test_rows_are_scored_while_a_first_embed_goes_on_or_after_it_was_killed(home, make_caller):
    """It leaves the folder, with hidden names alone."""
    shutil.rmtree(home / "second" / STAGE)
    (home / "second" / STAGE / ".tmp-key@host@1-abcd").mkdir(parents=True)
    health = make_caller(load_served(home / "second"))("GET", "/health").json()
    assert health["can_rank"] is False
    assert health["why_not"].startswith("its users and items are not stored")


def test_a_bundle_that_cannot_recommend_does_not_follow_one_that_can(home, frame, caplog, make_caller):
    """It ranks candidates, so it was taken, and /recommend answered 409 from then on."""
    settings = ServeSettings(max_scan=10)
    made, slot, metrics = watcher(home, lambda folder: load_served(folder, settings))
    made.first()
    assert make_caller(slot.served)("GET", "/health").json()["can_recommend"] is True
    shutil.rmtree(home / "second")
    write_run(home / "second", random_bundle(frame, "tabular"), frame)
    follower = load_served(home / "second", settings)
    health = make_caller(follower)("GET", "/health").json()
    assert (health["can_rank"], health["can_recommend"]) == (True, False)
    atomic_symlink(Path("second"), home / "current")
    assert made.look() is False
    assert slot.served.bundle_id == "first"
    assert swaps(metrics)["refused"] == 1
    assert "it cannot recommend, as the one that answers can: its model, TabularModel, has no" in caplog.text


def test_weights_that_a_disk_has_changed_are_not_served(home):
    """Without stored vectors nothing but their checksum tells."""
    shutil.rmtree(home / "second" / STAGE)
    path = home / "second" / "model" / "weights.safetensors"
    save_file({name: tensor + 1e-3 for name, tensor in load_file(path).items()}, path)
    with pytest.raises(BundleError, match=r"weights\.safetensors is not what was saved"):
        load_served(home / "second")


def test_a_passing_error_is_tried_again(home, caplog, monkeypatch):
    """P14: after too many open files the old bundle went on for good, and nothing told."""
    clock = [0.0]
    monkeypatch.setattr("gigabatch.pipeline.serving.swap.time.monotonic", lambda: clock[0])
    failing, tried = [True], []

    def load(folder):
        tried.append(folder.name)
        if failing[0] and folder.name == "second":
            raise OSError(24, "Too many open files", str(folder))
        return load_served(folder)

    made, slot, metrics = watcher(home, load)
    made.first()
    atomic_symlink(Path("second"), home / "current")
    with caplog.at_level(logging.ERROR):
        for seconds in (0.0, 0.01, 0.02, 0.03, 0.06):  # polls every 0.02 s: at once, then after 0.02, 0.04, ...
            clock[0] = seconds
            assert made.look() is False
    assert tried == ["first", "second", "second", "second"]
    assert len(caplog.records) == 1
    assert "Too many open files" in caplog.text
    assert swaps(metrics) == {"taken": 0, "refused": 1}
    told = slot.refused.told()
    assert (told["bundle"], told["error"], told["tries"], told["will_retry"]) == ("second", "OSError", 3, True)
    failing[0], clock[0] = False, 10.0
    assert made.look() is True
    assert (slot.served.bundle_id, slot.refused) == ("second", None)


def test_health_and_metrics_name_a_bundle_that_was_refused(make_caller, served):
    caller = make_caller(served)
    assert caller("GET", "/health").json()["refused"] is None
    caller.slot.refused = RefusedBundle("second", "OSError", time.time(), 2, True)
    answer = caller("GET", "/health")
    assert answer.status_code == 200  # the old one answers
    assert answer.json()["refused"].items() >= {"bundle": "second", "error": "OSError", "tries": 2}.items()
    assert "gigabatch_bundle_refused 1.0" in caller("GET", "/metrics").text


def test_a_refused_bundle_that_was_mended_is_taken(home):
    made, slot, metrics = watcher(home)
    made.first()
    kept = shutil.move(home / "second", home / "kept")
    atomic_symlink(Path("second"), home / "current")
    assert made.look() is False
    shutil.move(kept, home / "second")
    assert made.look() is True
    assert slot.served.bundle_id == "second"
    assert made.look() is False
    assert swaps(metrics) == {"taken": 1, "refused": 1}
    assert 'gigabatch_bundle_info{id="second"' in metrics.text().decode()


def test_vectors_of_other_weights_are_found_by_the_test_of_a_bundle(home):
    """Also where the identity would not tell: scores from vectors are compared with the model's own."""
    served = load_served(home / "first")
    served.ranker._item_vectors = served.ranker.items.vectors.clone()
    served.ranker._item_vectors[0] += 0.01
    with pytest.raises(ServingError, match="of other weights"):
        self_test(served)


def test_a_watch_outlives_a_failing_file_system(home, monkeypatch, caplog):
    made, slot, _ = watcher(home)
    made.first()
    calls = threading.Event()

    def fail(*_):
        calls.set()
        raise OSError("stale handle")

    monkeypatch.setattr("gigabatch.pipeline.serving.swap.signature", fail)
    made.start()
    assert calls.wait(60)
    monkeypatch.undo()
    atomic_symlink(Path("second"), home / "current")
    deadline = time.monotonic() + 120
    while slot.served.bundle_id != "second" and time.monotonic() < deadline:
        time.sleep(0.01)
    made.stop()
    assert slot.served.bundle_id == "second"


def test_no_request_fails_while_bundles_are_swapped_under_load(home, tmp_path):
    """Every answer is whole, and has the scores of the bundle that it names."""
    expected = {}
    for name in ("first", "second"):
        ranker = load_served(home / name).ranker
        asker = ranker.asker_of_row(ranker.users.rows["u1"])
        expected[name] = ranker.score(asker, RANK["items"])[0]
    assert expected["first"] != expected["second"]
    server = Server([home / "current"], tmp_path / "log", poll_seconds=0.05, timeout_seconds=60.0)
    body, stop, answers = json.dumps(RANK), threading.Event(), []

    def ask():
        connection = HTTPConnection("127.0.0.1", server.port, timeout=120)
        while not stop.is_set():
            connection.request("POST", "/rank", body, {"content-type": "application/json"})
            response = connection.getresponse()
            answers.append((response.status, json.loads(response.read())))
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for round_ in range(2):
            name = ("second", "first")[round_ % 2]
            atomic_symlink(Path(name), home / "current")
            server.wait_for("(?s)" + ".*".join([r"bundle \w+ answers"] * (round_ + 2)))
            seen, until = len(answers), time.monotonic() + 120
            while len(answers) < seen + 30 and time.monotonic() < until:  # the new bundle has to answer, too
                time.sleep(0.02)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        code = server.stop()
    assert code == 0
    assert {status for status, _ in answers} == {200}
    assert {answer["bundle"] for _, answer in answers} == {"first", "second"}
    for _, answer in answers:
        assert answer["scores"] == expected[answer["bundle"]]
    assert len(answers) > 100


def test_a_bundle_that_was_replaced_goes_with_its_last_request(home):
    made, slot, _ = watcher(home)
    made.first()
    asked, old = slot.served, weakref.ref(slot.served)
    atomic_symlink(Path("second"), home / "current")
    assert made.look() is True
    gc.collect()
    assert old() is asked  # whoever began with it goes on with it
    del asked
    gc.collect()
    assert old() is None
