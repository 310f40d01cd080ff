"""`gear checkpoint restore`: what was saved, inserted into tables that are declared otherwise."""

from __future__ import annotations

import numpy as np

import gear
from gear.server.reinsert import reinsert
from tests.storage.test_checkpoint import save

COLUMNS = [
    gear.Column("x", (3,), "float32"), gear.Column("a", (), "int8"), gear.Column("n", (), "int64", per="trajectory"),
    gear.Column("late", (), "int64", late=True),
]  # fmt: skip


def table(**fields) -> gear.Table:
    fields = {
        "item": gear.Window(4),
        "sampler": gear.Prioritized(0.6),
        "mean_length": 8,
        "requirements": [("late",)],
        **fields,
    }
    return gear.Table("t", COLUMNS, fields.pop("capacity", gear.Steps(1000)), **fields)


def everything(client: gear.Client) -> dict[int, list]:
    found: dict[int, list] = {}
    for page in client.scan():
        selection = client.select(ids=page.ids)
        batch = client.collect(selection)
        client.release(selection)
        for k in np.argsort(page.positions, kind="stable").tolist():
            n = int(batch["n"][k])
            item = batch["x"][k].tolist(), batch["a"][k].tolist()
            found.setdefault(n, []).append((*item, round(float(page.priorities[k]), 5)))
    return found


def test_trajectories_go_into_a_table_of_another_capacity_sampler_and_limiter(tmp_path):
    random = np.random.default_rng(0)
    with gear.embedded([table(max_length=40)]) as client:
        for n in range(1, 40):
            length = 3 + n % 60  # some in two pieces
            x, a = random.random((length, 3)).astype(np.float32), np.arange(length, dtype=np.int8)
            final = {"x": np.full(3, n, np.float32)} if n % 3 == 0 else None
            ids = client.insert_many([{"x": x, "a": a, "n": n}], final=final and {"x": final["x"][None]})
            if n % 2 and length <= 40:
                client.fill(ids, {"late": [np.arange(length) * n]})
        for page in client.scan():
            client.update_priorities(page.ids, 1.0 + page.positions % 5)
        before = everything(client)
        path = save(client._session._tables["t"].stored, tmp_path)
    with gear.embedded([table(capacity=gear.Steps(2000), max_length=80, limiter=gear.MinSize(5))]) as client:
        assert sum(reinsert(path, client).values()) == 39
        after = everything(client)
        batch = client.sample(64, require="late")
        assert (batch["late"] == batch["a"].astype(np.int64) * batch["n"][:, None]).all()
        assert set(batch["n"].tolist()) <= {n for n in before if n % 2 and 3 + n <= 40}
    assert after.keys() == before.keys()
    for n, items in before.items():
        if 3 + n % 60 <= 40:
            assert after[n] == items
    with gear.embedded([]) as client:  # a table that is not there is created
        assert reinsert(path, client) == {"t": 39}
        assert client.info()["tables"]["t"]["steps"] == sum(3 + n % 60 for n in range(1, 40))
