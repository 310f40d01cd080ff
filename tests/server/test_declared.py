"""`gear-server --tables` and `gear tables`: a server starts with its tables, and says how they are declared."""

from __future__ import annotations

import uuid

import pytest

import gear
from gear import toml
from gear.server import cli
from gear.server.config import Options
from gear.server.declared import read_tables
from gear.server.runtime import runtime_directory
from gear.server.supervisor import Supervisor
from gear.storage.layout import Layout
from tests.transport.helpers import table

GIB = 1 << 30
GOOD = toml.to_toml([table("one"), table("two", sampler=gear.Prioritized(0.7), limiter=gear.MinSize(3))])


@pytest.fixture
def write(tmp_path):
    def one(content: str | bytes) -> str:
        path = tmp_path / "tables.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return one


def test_the_tables_are_there_when_the_server_says_that_it_is_ready(start_server, write, capsys):
    server = start_server("--tables", write(GOOD))
    with gear.connect(server.address) as client:
        tables = client.info()["tables"]
        assert list(tables) == ["one", "two"]
        assert tables["one"]["clients"] == tables["one"]["silent_clients"] == 0  # the supervisor has left
        client.create_table(table("one"))  # equal to what the file declares
        client.create_table(table("three"))
    assert cli.main(["tables", server.address]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"# 3 tables of server {server.name} at {server.address}\n")
    assert toml.from_toml(printed) == [*toml.from_toml(GOOD), table("three")]
    again = start_server("--tables", write(printed))
    assert cli.main(["tables", again.address]) == 0
    assert capsys.readouterr().out.partition("\n")[2] == printed.partition("\n")[2]


def test_a_server_without_tables_prints_none(server, capsys):
    assert cli.main(["tables", server.address]) == 0
    assert capsys.readouterr().out.startswith("# 0 tables of server")


def test_tables_are_created_by_a_server_with_a_token(start_server, write, tmp_path, capsys):
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("a-long-secret")
    server = start_server("--tables", write(GOOD), "--token-file", str(token))
    assert cli.main(["tables", server.address, "--token-file", str(token)]) == 0
    assert "[table.two]" in capsys.readouterr().out
    assert cli.main(["tables", server.address]) == 1
    assert "wants a token" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "expected a file of tables: No such file or directory"),
        (b"\xff", "expected TOML in UTF-8, got a file whose byte 0 is none"),
        ("", "expected a [table.NAME] for each table, got none"),
        (GOOD.replace("int64", "int63"), "table 'one', columns[0]: Column 'k': dtype 'int63' is not supported"),
        (GOOD.replace("4_000", "10_000_000_000"), "table 'one' has 22500000000 rows on one shard"),
        (GOOD.replace('dtype = "int64"', 'placement = "device"'), "table 'one', columns k: expected placement"),
        (GOOD.replace("4_000", "400_000_000"), "table 'one' and those before it need"),
        ("\n".join(GOOD.replace("one", f"t{n}").partition("[table.two]")[0] for n in range(257)),
         "expected at most 256 tables, got 257"),
    ],
)  # fmt: skip
def test_every_mistake_is_refused_before_anything_starts(tmp_path, write, content, message, capsys, monkeypatch):
    monkeypatch.setattr("gear.server.supervisor.Supervisor.run", lambda self: pytest.fail("the server was started"))
    path = str(tmp_path / "none.toml") if content is None else write(content)
    assert cli.server_main(["--port", "0", "--memory", "1GiB", "--tables", path]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"gear-server: error: --tables {path}: ")
    assert message in shown


def test_memory_is_that_of_all_tables_together(write):
    assert [t.name for t in read_tables(write(GOOD), GIB)] == ["one", "two"]
    with pytest.raises(gear.InsufficientMemory, match="table 'two' and those before it need"):
        read_tables(write(GOOD), Layout(table("one")).nbytes * 3 // 2)


def test_each_of_several_shards_has_its_part_of_the_memory_and_of_each_table(write):
    whole = sum(Layout(table(name)).nbytes for name in ("one", "two"))
    assert len(read_tables(write(GOOD), 2 * whole, 2)) == 2
    with pytest.raises(gear.InsufficientMemory, match="on one of 2 shards, but --memory allows"):
        read_tables(write(GOOD), whole // 2, 2)


def test_a_table_that_cannot_be_created_after_all_ends_the_start_and_leaves_nothing():
    """The second one does not fit; the options were not checked before."""
    tables = (table("one"), table("two"))
    memory = Layout(tables[0]).nbytes * 3 // 2
    name = f"test-{uuid.uuid4().hex[:12]}"
    options = Options(name, "127.0.0.1", 0, "cpu", memory, "", "error", False, 1.0, tables)
    announced: list[str] = []
    with pytest.raises(gear.InsufficientMemory, match="table 'two' needs"):
        Supervisor(options, announced.append).run()
    assert announced == []
    assert not list(runtime_directory().glob(f"{name}.*"))
