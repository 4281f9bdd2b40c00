"""The text goes through layers in batches, each a task: the same bits whoever runs which."""

import multiprocessing
import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import torch
from compressing_models import work_in

import gacprof
from gacprof.core.tasks import Tasks
from gacprof.extras.compress import activations, gradients, layered
from gacprof.extras.compress.gradients import Gather


class Processes(Tasks):
    """Two processes beside this one; what was submitted and by which of them it was run."""

    ahead = 3

    def __init__(self):
        self.pool = ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))
        self.submitted, self.workers = Counter(), set()

    def submit(self, function, *args):
        self.submitted[function.__name__] += 1
        begun = self.pool.submit(_with_process, torch.get_num_threads(), function, *args)

        def result():
            process, found = begun.result()
            self.workers.add(process)
            return found

        return result


def _with_process(threads, function, *args):
    torch.set_num_threads(threads)
    return os.getpid(), function(*args)


def test_batches_of_the_text_are_shared_by_processes_to_the_same_bits(
    dense, ids, tmp_path, monkeypatch
):
    """A and G are what the factors, the losses of cuts and so the ranks follow from."""
    monkeypatch.setattr(layered, "TOKENS_AT_ONCE", 128)  # three batches
    common = {"method": "kfac-svd", "ratio": 0.3, "calib": ids, "round_to": 8, "objective": "loss"}
    tasks, files = Processes(), {}
    with tasks.pool:
        for name, by in (("here", None), ("shared", tasks)):
            work = tmp_path / f"{name}-work"
            done = gacprof.compress(dense, tmp_path / name, tasks=by, work=work, **common)
            files[name] = {p.name: p.read_bytes() for p in work.glob("*/*.safetensors")}
            files[name] |= {"model": (tmp_path / name / "model.safetensors").read_bytes()}
            files[name] |= {"sizes": done.sizes}
    assert tasks.submitted == {"_run_batch": 9, "_back": 9, "decomposed": 3}
    assert len(tasks.workers) == 2 and os.getpid() not in tasks.workers
    assert len(files["here"]) == 5 and files["here"] == files["shared"]


def test_what_is_gathered_is_the_sum_over_all_batches(dense, ids, measured, tmp_path, monkeypatch):
    monkeypatch.setattr(layered, "TOKENS_AT_ONCE", 128)
    found = {}

    def take(index, of_layer, spent):
        found.update({n: (s, of_layer.slopes[n]) for n, s in of_layer.seen.items()})

    work = work_in(tmp_path, dense, ids)
    model = layered.LayeredModel(work.reader)
    activations.pass_through(model, work)
    names = [name.removeprefix("model.layers.1.") for name in measured if ".1." in name]
    watched = [{f"model.layers.{i}.{n}": n for n in names} for i in range(3)]
    gather = Gather(inputs=True, outputs="whole")
    gradients.back_through(model, work, [*watched, {}], gather, lambda index: False, take)
    assert set(found) == set(measured)
    for name, (x, g) in measured.items():
        seen, slopes = found[name]
        assert seen.tokens == slopes.tokens == ids.numel()
        assert torch.allclose(seen.moments, x.T @ x, rtol=1e-4, atol=1e-4)
        exact = g.T @ g / len(g)
        assert torch.allclose(slopes.covariance(name).double(), exact, atol=1e-4 * exact.max())


def test_results_come_in_the_order_of_their_calls_whoever_is_done_first():
    class Late(Tasks):
        """Runs what was submitted when it is asked for."""

        ahead, most = 2, 0
        under_way = 0

        def submit(self, function, *args):
            self.under_way += 1
            self.most = max(self.most, self.under_way)

            def result():
                self.under_way -= 1
                return function(*args)

            return result

    tasks = Late()
    assert list(tasks.in_order(pow, ((2, n) for n in range(6)))) == [1, 2, 4, 8, 16, 32]
    assert tasks.most == tasks.ahead + 1 and tasks.under_way == 0
    assert list(Tasks().in_order(pow, [(3, 2)])) == [9] and not list(tasks.in_order(pow, []))
