"""The configuration is read whole, from file and environment; every mistake says where it is and what to do."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from pathlib import Path

import pytest

from tests import certificates
from wastegate import site
from wastegate.core.plan import Timers
from wastegate.gateway import devices
from wastegate.gateway.upstream import Access
from wastegate.site import ConfigError, Site

REPLICA = '[[replicas]]\nurl = "http://127.0.0.1:8101"\n'


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty working directory, and nothing of ours in the environment."""
    for name in ("WASTEGATE_CONFIG", "WASTEGATE_DATA", "WASTEGATE_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def parse(text: str, **environ: str) -> Site:
    return site.parse(text, "x.toml", environ=environ)


# ---- where it is read from


def test_without_a_file_there_are_the_defaults(tmp_path: Path) -> None:
    here = site.load()
    assert (here.source, here.gateway.listen, here.gateway.replicas) == ("", "127.0.0.1:8080", ())
    assert (here.gateway.source, here.gateway.sha256) == ("", "")
    assert here.data == tmp_path / "data/wastegate"
    assert here.ledger == tmp_path / "data/wastegate/ledger.db"


def test_a_file_is_named_or_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, listen in (("here/wastegate.toml", 1), ("by-environment.toml", 2), ("by-flag.toml", 3)):
        (tmp_path / name).write_text(f'[gateway]\nlisten = "127.0.0.1:{listen}"\n')
    assert site.load().gateway.listen == "127.0.0.1:1"
    monkeypatch.setenv("WASTEGATE_CONFIG", str(tmp_path / "by-environment.toml"))
    assert site.load().gateway.listen == "127.0.0.1:2"
    here = site.load(tmp_path / "by-flag.toml")
    assert here.gateway.listen == "127.0.0.1:3"
    assert here.gateway.source == here.source == str(tmp_path / "by-flag.toml")
    assert here.gateway.sha256 == hashlib.sha256((tmp_path / "by-flag.toml").read_bytes()).hexdigest()


def test_flags_go_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('[gateway]\nlisten = "127.0.0.1:1"\nworkers = 3\n[admin]\nlisten = "127.0.0.1:2"\n')
    here = site.load(path, listen="127.0.0.1:7", admin="127.0.0.1:8", data=tmp_path / "other", workers=2)
    gateway = here.gateway
    assert (gateway.listen, gateway.control.listen, gateway.workers) == ("127.0.0.1:7", "127.0.0.1:8", 2)
    assert gateway.data == here.data == tmp_path / "other"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml: cannot be read \(No such file or directory\)"):
        site.load(tmp_path / "gone.toml")
    with pytest.raises(ConfigError, match=r"cannot be read \(Is a directory\)"):
        site.load(tmp_path)
    (tmp_path / "x.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"x\.toml: is not UTF-8 \(byte 5\)"):
        site.load(tmp_path / "x.toml")


def test_whoever_only_reads_the_ledger_needs_no_secret(tmp_path: Path) -> None:
    assert site.ledger_of() == tmp_path / "data/wastegate/ledger.db"
    path = tmp_path / "x.toml"
    path.write_text('[gateway]\ndata = "kept"\napi_keys_env = "KEYS"\ntls_cert = "gone"\n[admin]\ntoken_env = "T"\n')
    assert site.ledger_of(path) == Path("kept/ledger.db")
    path.write_text('[ledger]\npath = "other.db"\n')
    assert site.ledger_of(path) == Path("other.db")
    path.write_text("[ledge]\n")
    with pytest.raises(ConfigError, match="unknown key 'ledge'; did you mean 'ledger'"):
        site.ledger_of(path)


def test_whoever_only_asks_the_operators_listener_needs_no_other_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert site.admin_of() == ("http://127.0.0.1:8081", "")
    path = tmp_path / "x.toml"
    path.write_text('[gateway]\napi_keys_env = "KEYS"\n[admin]\nlisten = "0.0.0.0:9"\ntoken_env = "T"\n')
    with pytest.raises(ConfigError, match="token_env names"):
        site.admin_of(path)
    monkeypatch.setenv("T", "the-token")
    assert site.admin_of(path) == ("http://127.0.0.1:9", "the-token")
    path.write_text('[admin]\nlisten = "9"\n')
    with pytest.raises(ConfigError, match="write host:port"):
        site.admin_of(path)


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"\xef\xbb\xbf[gateway]\nworkers = 2\n")
    assert site.load(tmp_path / "x.toml").gateway.workers == 2


def test_the_users_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WASTEGATE_CACHE", str(tmp_path / "models"))
    monkeypatch.setenv("WASTEGATE_DATA", str(tmp_path / "kept"))
    assert (site.cache_dir(), site.data_dir()) == (tmp_path / "models", tmp_path / "kept")
    for name in ("WASTEGATE_CACHE", "WASTEGATE_DATA", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert site.cache_dir() == tmp_path / ".cache/wastegate"
    assert site.data_dir() == tmp_path / ".local/share/wastegate"


def test_what_downloads_need_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_CERT", "SSL_CERT_FILE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert (site.certificates(), site.model_hub()) == ("", "")
    monkeypatch.setenv("SSL_CERT_FILE", "one.pem")
    monkeypatch.setenv("HF_ENDPOINT", "http://hub")
    assert (site.certificates(), site.model_hub()) == ("one.pem", "http://hub")
    monkeypatch.setenv("PIP_CERT", "two.pem")
    assert site.certificates() == "two.pem"


# ---- mistakes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[gateway\n", r"x\.toml: .*line 1"),
        ("[timer]\n", r"x\.toml:1: unknown key 'timer'; did you mean 'timers'\?"),
        ("[gateway]\nworkers = 0\n", r"x\.toml:1: workers is 0: from 1 to 64"),
        ("[timers]\nidle = -1.0\n", r"x\.toml:1: idle is -1\.0: a timer must be above 0"),
        ('[timers]\nidle = "soon"\n', r"x\.toml:2: expected `float`, got `str` \(at timers\.idle\)"),
        ('[gateway]\nlisten = "8080"\n', r"x\.toml: '8080' is not an address: write host:port"),
        ('[admin]\nlisten = "0.0.0.0:8081"\n', r"listens on 0\.0\.0\.0, which others can reach: set token_env"),
        ('[admin]\ntoken = "a"\ntoken_env = "B"\n', r"\[admin\] has both token and token_env: keep one"),
        ('[records]\ntoken = "a"\ntoken_env = "B"\n', r"\[records\] has both token and token_env: keep one"),
        ('[telemetry]\nendpoint = "collector"\n', r"x\.toml:1: endpoint is 'collector': write the collector's address"),
        ("[records]\nevery = 0.0\n", r"x\.toml:1: every and timeout must be above 0 seconds"),
        (f'{REPLICA}name = "a"\n{REPLICA}name = "a"\n', r"two replicas are called 'a': give each a name"),
        ('[[replicas]]\nurl = "127.0.0.1:8101"\n', r"replica 'replica-1': '127\.0\.0\.1:8101' is not an http://"),
        (f'{REPLICA}accelerator = "abacus"\n', r"replica 'replica-1': .*abacus"),
        (f'{REPLICA}ca_file = "gone.pem"\n', r"x\.toml:3: ca_file gone\.pem cannot be read \(No such file"),
        ('[gateway]\ntls_cert = "a.crt"\n', r"x\.toml: tls_cert is set, but tls_key is not"),
        ('[gateway]\ntls_cert = "a.crt"\ntls_key = "a.key"\n', r"x\.toml: tls_cert a\.crt cannot be read"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(text)


def test_a_flag_can_be_wrong_as_well() -> None:
    with pytest.raises(ConfigError, match="workers is 65: from 1 to 64"):
        site.load(workers=65)


def test_a_route_takes_what_it_does_not_set_of_the_levers() -> None:
    site = parse(
        """
[levers.streaming]
default_tokens = 500
most_tokens = 2000

[[routes]]
name = "chat"
match = "/v1/chat/*"
levers.streaming = { most_tokens = 300 }

[[routes]]
name = "rest"
match = "*"
"""
    )
    chat, rest = (route.levers.streaming for route in site.gateway.routes)
    assert (chat.default_tokens, chat.most_tokens) == (500, 300)
    assert rest == site.gateway.levers.streaming
    with pytest.raises(ConfigError, match=r"x\.toml:1: most_tokens is -1: a bound in tokens, or 0 for none"):
        parse("[levers.streaming]\nmost_tokens = -1\n")
    with pytest.raises(
        ConfigError, match=r"unknown key 'streeming' in \[routes\.0\.levers\]; did you mean 'streaming'"
    ):
        parse('[[routes]]\nname = "a"\nmatch = "*"\nlevers.streeming = {}\n')


def test_a_route_takes_the_timers_that_it_does_not_set() -> None:
    text = """
[timers]
total = 90.0
[[routes]]
name = "a"
match = "*"
timers = { idle = 5.0 }
[[routes]]
name = "b"
match = "*"
"""
    first, second = parse(text).gateway.routes
    assert first.timers == Timers(total=90.0, idle=5.0)
    assert second.timers == Timers(total=90.0)
    with pytest.raises(ConfigError, match=r"x\.toml:3: expected `float`, got `str` \(at timers\.total\)"):
        parse(text.replace("90.0", '"long"'))


# ---- secrets


def test_secrets_come_from_the_environment() -> None:
    text = """
[gateway]
api_keys_env = "KEYS"
[admin]
listen = "0.0.0.0:8081"
token_env = "ADMIN"
[records]
token_env = "PLUGIN"
[[replicas]]
name = "a"
url = "http://a:8000"
api_key_env = "A_KEY"
[[replicas]]
url = "http://b:8000"
"""
    gateway = parse(text, KEYS=" one, two ,", ADMIN="the-token\n", A_KEY="the-key", PLUGIN="plugged").gateway
    assert gateway.api_keys == ("one", "two")
    assert gateway.control.token == "the-token"
    assert gateway.records.token == "plugged"
    assert gateway.access == {"a": Access("the-key", "A_KEY")}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[gateway]\napi_keys_env = "{}"\n', 2),
        ('[admin]\ntoken_env = "{}"\n', 2),
        ('[records]\ntoken_env = "{}"\n', 2),
        ('[telemetry]\nheaders_env = "{}"\n', 2),
        (REPLICA + 'api_key_env = "{}"\n', 3),
    ],
)
def test_a_variable_that_is_not_set_is_named_but_a_secret_is_not_repeated(text: str, line: int) -> None:
    for environ in ({}, {"MY_KEY": ""}, {"MY_KEY": "  "}):
        with pytest.raises(ConfigError, match=rf"x\.toml:{line}: \w+_env names \$MY_KEY, which is not set: it takes a"):
            parse(text.format("MY_KEY"), **environ)
    with pytest.raises(ConfigError, match="names an environment variable that is not set") as caught:
        parse(text.format("sk-live-0123456789"))
    assert "sk-live" not in str(caught.value)


def test_what_is_sent_to_a_collector_may_hold_a_secret() -> None:
    text = """
[telemetry]
endpoint = "http://c:4318"
headers = { x-scope = "here" }
headers_env = "MORE"
"""
    gateway = parse(text, MORE="Authorization=Bearer abc=").gateway
    assert gateway.telemetry.headers == {"x-scope": "here", "authorization": "Bearer abc="}
    with pytest.raises(ConfigError, match=r"x\.toml:5: \$MORE cannot be used: it must read name=value") as caught:
        parse(text, MORE="abcdef")
    assert "abcdef" not in str(caught.value)


def test_where_accelerators_are_measured() -> None:
    text = """
[devices]
redis_env = "R"
[[replicas]]
name = "a"
url = "http://a:8000"
dcgm = "http://a:9400/metrics"
devices = ["0", "1"]
[[replicas]]
url = "http://b:8000"
"""
    gateway = parse(text, R="redis://:secret@x/0").gateway
    assert gateway.places == {"a": devices.Place("http://a:9400/metrics", ("0", "1"))}
    assert gateway.devices.redis == "redis://:secret@x/0"
    with pytest.raises(ConfigError, match=r"\[devices\] redis_env: redis must begin with") as caught:
        parse(text, R="secret")
    assert "secret" not in str(caught.value).replace("the secret itself", "")
    with pytest.raises(ConfigError, match=r"\[devices\] has both redis and redis_env"):
        parse(text.replace("[devices]", '[devices]\nredis = "redis://x"'), R="redis://x")


def test_keys_that_no_header_can_carry_are_refused_unseen() -> None:
    for value, said in (
        (",,", "holds no key, only commas"),
        ("good,with blank", "holds blanks or signs"),
        ("é", "holds blanks"),
    ):
        with pytest.raises(ConfigError, match=said) as caught:
            parse('[gateway]\napi_keys_env = "KEYS"\n', KEYS=value)
        assert "with blank" not in str(caught.value)
    with pytest.raises(ConfigError, match="replica 'replica-1': the key in A_KEY holds blanks"):
        parse(f'{REPLICA}api_key_env = "A_KEY"\n', A_KEY="with blank")


def test_an_authority_is_read_with_the_rest(tmp_path: Path) -> None:
    pair = certificates.make(tmp_path)
    text = f'[[replicas]]\nurl = "https://a"\nca_file = "{pair.cert}"\n'
    assert parse(text).gateway.access == {"replica-1": Access(ca_file=str(pair.cert), ca=pair.cert.read_text())}
    with pytest.raises(ConfigError, match=r"replica 'replica-1': ca_file .* holds no certificate"):
        parse(text.replace(str(pair.cert), str(pair.key)))
    with pytest.raises(ConfigError, match="is not https://, so ca_file has no use"):
        parse(text.replace("https", "http"))


def test_a_certificate_is_checked_with_the_rest(tmp_path: Path) -> None:
    one, other = certificates.make(tmp_path), certificates.make(tmp_path, "other")
    text = f'[gateway]\ntls_cert = "{one.cert}"\ntls_key = "{one.key}"\n'
    files = parse(text).gateway.tls
    assert (files.cert, files.key, len(files.sha256)) == (str(one.cert), str(one.key), 64)
    with pytest.raises(ConfigError, match="does not belong to the certificate"):
        parse(text.replace(str(one.key), str(other.key)))


# ---- read again, while somebody runs by it


def test_a_file_at_rest_is_read_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    path = tmp_path / "x.toml"
    path.write_text(REPLICA)
    os.utime(path, (1, 1))
    assert len(site.load(path, again=True).gateway.replicas) == 1
    assert waits == []


def test_a_file_that_is_being_saved_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each half of it is valid, and says something else."""
    monkeypatch.setattr(site, "_QUIET_SECONDS", 0.8)
    path = tmp_path / "x.toml"
    path.write_text("")
    written = threading.Event()

    def save() -> None:
        with path.open("w") as file:
            for number in range(4):
                file.write(f'[[replicas]]\nurl = "http://r{number}"\n')
                file.flush()
                time.sleep(0.05)
        written.set()

    writer = threading.Thread(target=save)
    writer.start()
    here = site.load(path, again=True)
    assert written.is_set()
    assert len(here.gateway.replicas) == 4
    writer.join()


def test_a_file_that_is_moved_away_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    path, away = tmp_path / "x.toml", tmp_path / "x.toml~"
    path.write_text(REPLICA)
    os.utime(path, (1, 1))
    path.rename(away)
    timer = threading.Timer(0.1, lambda: away.rename(path))
    timer.start()
    assert len(site.load(path, again=True).gateway.replicas) == 1
    timer.join()
    path.unlink()
    with pytest.raises(ConfigError, match=r"cannot be read \(No such file"):
        site.load(path, again=True)


def test_a_file_that_never_comes_to_rest_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "_PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(site, "_QUIET_SECONDS", 30.0)
    path = tmp_path / "x.toml"
    path.write_text(REPLICA)
    with pytest.raises(ConfigError, match="is still being written to; reload once it is saved"):
        site.load(path, again=True)


def test_an_empty_file_is_no_configuration_to_go_on_with(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("\n \n")
    os.utime(path, (1, 1))
    assert site.load(path).gateway.replicas == ()
    with pytest.raises(ConfigError, match="is empty; write at least"):
        site.load(path, again=True)


# ---- what the pages show


def test_the_configurations_in_the_pages_are_good() -> None:
    pages = sorted((Path(__file__).parent.parent / "docs").glob("*.md"))
    blocks = [block for page in pages for block in re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.M | re.S)]
    assert len(blocks) >= 3
    for block in blocks:
        site._shaped(block, "a page")
