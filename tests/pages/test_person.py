"""Tests of the person's page without a browser: it gives the same results as the commands."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privirec.app import own_policy
from privirec.app.budget import BudgetStatement, statement_of
from privirec.app.cli.every import app
from privirec.app.own_device import OwnDevice
from privirec.app.pages.person import PersonSite
from privirec.data import Dataset
from privirec.data.catalogue import Catalogue
from privirec.device import Device, Installed, Store, load_model
from privirec.device.shelves import Kind, shelves
from privirec.errors import ArtifactError, PrivirecError, UsageError
from privirec.privacy.policy import Policy
from privirec.runtime.enrolment.folders import ClientFolder

from .conftest import ME
from .small_federation import title
from .visitor import Visitor, serving

SETTINGS = {
    "takes_part": "yes",
    "active": "yes",
    "aggregators": ["secagg+", "secagg"],
    "level": "own",
    "most_epsilon": "20",
    "most_epsilon_per_year": "9",
    "smallest_cohort": "3",
    "fewest_other_people": "10",
    "days_between_changes": "7",
    "most_bytes_up": "1000",
    "most_bytes_down": "1000",
}
"""Fields of the policy form as first submitted."""


def mine(client: Path) -> list[str]:
    with Store(client / "history.db") as store:
        return store.items("me")


def offered(visitor: Visitor) -> list[str]:
    """Return the items that the page recommends as the best, best first."""
    best = visitor.look().text.partition('id="shelf-0"')[2].partition("</section>")[0]
    return re.findall(r'class="face" href="item\?id=(\d+)"', best)


# --- recommendations ------------------------------------------------------------------------------


def test_recommendations_are_those_of_the_command_with_titles_and_causes(
    visitor: Visitor, client: Path
) -> None:
    with Store(client / "history.db") as store:
        device = Device(store, load_model(client / "model"))
        expected = device.recommend("me", 10, explain=True)
    assert offered(visitor) == [each.item for each in expected]
    words = visitor.look().words
    for each in expected:
        assert each.title is not None
        assert each.title in words
        (cause, share), *_ = each.strongest(1)
        assert f"{cause.title} ({share:.0%})" in visitor.look(f"item?id={each.item}").words
    assert f"Because of {expected[0].strongest(1)[0][0].title}" in words
    assert visitor.look("?n=50").text.count('class="face"') == 50


def test_shelves_say_why_and_repeat_nothing(visitor: Visitor, client: Path) -> None:
    page = visitor.look()
    for heading in ("Best for you", "Because of", "New to you", "Hidden gems"):
        assert heading in page.words
    shown = re.findall(r'class="face" href="item\?id=(\d+)"', page.text)
    assert len(shown) == len(set(shown)) > 30
    assert not set(shown) & set(ME)
    with Store(client / "history.db") as store:
        device = Device(store, load_model(client / "model"))
        groups = {shelf.kind: shelf for shelf in shelves(device, "me")}
        people = device.people([each.item for each in groups[Kind.GEMS].items])
        others = device.people([each.item for each in groups[Kind.BEST].items])
    assert max(people.values()) < sum(others.values()) / len(others)
    for shelf in groups.values():
        scores = [each.score for each in shelf.items]
        assert scores == sorted(scores, reverse=True)
        if shelf.cause is not None:
            assert all(each.strongest(1)[0][0].item == shelf.cause.item for each in shelf.items)


def test_what_is_not_for_me_teaches_the_device_and_can_be_undone(
    visitor: Visitor, client: Path
) -> None:
    first, *rest = offered(visitor)
    answer = visitor.change("dislike", item=first, back="")
    assert "is not shown any more, and things like it come later" in answer.words
    assert first not in re.findall(r"item\?id=(\d+)", visitor.look("?n=50").text)
    assert "Not for me" in visitor.look("history").words
    with Store(client / "history.db") as store:
        assert store.dislikes("me") == [first]
        assert store.items("me") == sorted(ME)
    assert "Undone" in visitor.change("undo", back="").words
    assert offered(visitor) == [first, *rest]
    assert visitor.change("undo").status == 400  # only once
    visitor.change("dislike", item=first)
    assert "may be recommended again" in visitor.change("like-again", item=first).words
    assert offered(visitor) == [first, *rest]


def test_adding_and_removing_can_be_undone(visitor: Visitor, client: Path) -> None:
    first = offered(visitor)[0]
    visitor.change("add", item=first)
    assert "Undone" in visitor.change("undo").words
    assert mine(client) == sorted(ME)
    with Store(client / "history.db") as store:
        store.add_timed([("me", ME[0], 1706702400.0)])
    assert "31 Jan 2024" in visitor.look("history").words
    visitor.change("forget", item=ME[0])
    assert "Undo" in visitor.change("forget", item=ME[1]).words  # of the last change only
    visitor.change("undo")
    assert mine(client) == sorted(set(ME) - {ME[0]})
    visitor.change("forget", what="history", confirm="yes")
    assert visitor.change("undo").status == 400


def test_a_link_leads_only_to_a_web_page(visitor: Visitor, client: Path) -> None:
    with Store(client / "history.db") as store:
        store.set_titles({"7": "Seven"}, {"7": "https://shop.example/7?a=<b>"})
        store.set_titles({"8": "Eight"}, {"8": "javascript:alert(1)"})
    page = visitor.look("item?id=7")
    assert (
        'href="https://shop.example/7?a=&lt;b&gt;" rel="noreferrer noopener external"' in page.text
    )
    assert "Open it at shop.example" in page.words
    assert "javascript:" not in visitor.look("item?id=8").text


def test_giving_and_taking_an_item(visitor: Visitor, client: Path) -> None:
    first = offered(visitor)[0]
    answer = visitor.change("add", item=first, back="")
    assert f"Added to your history: {title(int(first))}." in answer.words
    assert first in mine(client)
    assert first not in offered(visitor)
    assert "has it already" in visitor.change("add", item=first).words
    answer = visitor.change("forget", item=first, back="history")
    assert "Forgotten: 1 interaction. No run has used them." in answer.words
    assert "Forgotten" not in visitor.look("history").words  # shown once
    assert mine(client) == sorted(ME)
    answer = visitor.change("forget", item=first)
    assert answer.status == 400
    assert f"user me has no item {first}" in answer.words


def test_an_item_that_cannot_be_one_is_refused(visitor: Visitor, client: Path) -> None:
    for item in ("", " ", "-5", "a\x00b", "\u202e"):
        answer = visitor.change("add", item=item)
        assert answer.status == 400
        assert "cannot be the id of an item" in answer.words
    assert mine(client) == sorted(ME)


def test_a_change_leads_to_no_page_but_ours(visitor: Visitor) -> None:
    for back in ("//evil.example/", "https://evil.example", "/", "nowhere", "//["):
        answer = visitor.change("add", item="77", back=back)
        assert "<h1>My history</h1>" in answer.text
    split = "search?text=\u00e9\u20ac\r\nSet-Cookie: x=y\r\n\r\nb"
    answer = visitor.change("add", item="77", back=split)
    assert "<h1>Search</h1>" in answer.text
    assert "Set-Cookie" not in answer.headers


def test_search_finds_titles_and_ids_and_keeps_its_place(visitor: Visitor, client: Path) -> None:
    found = visitor.look("search?text=gardEN+quiet")
    assert "Quiet Garden 10" in found.words
    assert "<script" not in visitor.look("search?text=%3Cscript%3E").text
    assert f"{title(3)} 3 Take it out" in visitor.look("search?text=3").words
    answer = visitor.change("add", item="10", back="search?text=garden")
    assert 'value="garden"' in answer.text
    assert "10" in mine(client)
    unknown = visitor.look("search?text=a+b%26c")
    assert "Nothing in the catalogue is called that" in unknown.words
    visitor.change("add", item="a b&c")
    assert "a b&c" in mine(client)


def test_similar_items(visitor: Visitor, client: Path) -> None:
    with Store(client / "history.db") as store:
        expected = Device(store, load_model(client / "model")).similar("7")
    found = visitor.look("item?id=7")
    assert f"<h1>{title(7)}</h1>" in found.text
    assert re.findall(r'class="face" href="item\?id=(\d+)"', found.text) == [
        each.item for each in expected
    ]
    assert "The model knows no item x" not in visitor.look("item?id=7").words
    assert "the model knows no item x" in visitor.look("item?id=x").words
    assert visitor.look("item").status == 200


@pytest.mark.filterwarnings("ignore:the model does not know 1 of")  # on stderr, but not an error
def test_titles_and_ids_are_text(visitor: Visitor, client: Path) -> None:
    nasty = '<img src=x onerror=alert(1)>"&amp;'
    with Store(client / "history.db") as store:
        store.set_titles(dict.fromkeys((*ME, *offered(visitor)), nasty))
        store.add([("me", nasty)])
    for path in ("", "history", "search?text=img", "item?id=3", "item?id=%3Cimg%3E"):
        answer = visitor.look(path)
        assert answer.status == 200
        assert "<img" not in answer.text
        assert nasty in answer.words or "<img>" in answer.words


# --- history --------------------------------------------------------------------------------------


def test_the_export_is_that_of_the_command(visitor: Visitor, client: Path, tmp_path: Path) -> None:
    answer = visitor.look("export.csv")
    CliRunner().invoke(
        app,
        ["device", "export", str(tmp_path / "out.csv"), "--store", str(client / "history.db")],
    )
    assert answer.text == (tmp_path / "out.csv").read_text()
    assert answer.headers["Content-Type"].startswith("text/csv")
    assert "attachment" in answer.headers["Content-Disposition"]


def test_an_export_is_uploaded_and_unsure_titles_are_asked(visitor: Visitor, client: Path) -> None:
    rows = [f'"{title(7)}","1/31/24"', '"Quiet Gardne","1/30/24"', '"Nothing Like It","1/29/24"']
    content = "\r\n".join(["Title,Date", *rows, ""]).encode()
    page = visitor.upload("import", "C:\\fake\\NetflixViewingHistory.csv", content)
    assert "An export of Netflix: 3 entries" in page.words
    assert "Not in the catalogue: Nothing Like It." in page.words
    assert "“Quiet Gardne” may be:" in page.words
    assert "--" not in page.words
    assert mine(client) == sorted({*ME, "7"})
    assert not list(client.glob(".import-*"))
    found = re.findall(r'href="item\?id=(\d+)"', page.text.partition('id="unsure"')[2])
    assert title(int(found[0])) == "Quiet Garden"
    answer = visitor.change("add", item=found[0])
    assert "may be:" not in answer.words
    assert found[0] in mine(client)


def test_files_that_help_nobody_are_refused(
    visitor: Visitor, client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    visitor.look("history")
    before = mine(client)
    for name, content, why in (
        ("a.exe", b"x", "Choose a file that ends in"),
        ("a.csv", b"", "Choose a file that ends in"),
        ("a.json", b'[{"ts": ', "was the download cut off?"),
        ("a.csv", b"Title,Date\r\nNothing,1/1/24\r\n", "nothing was imported: none of 1 items"),
    ):
        answer = visitor.upload("import", name, content)
        assert answer.status == 400
        assert why.lower() in answer.words.lower(), answer.words
        assert ".import-" not in answer.text
    assert visitor.upload("add", "a.csv", b"x", item="9").status == 415  # only where files belong
    assert visitor.upload("import", "a.csv", b"x", csrf="").status == 403
    monkeypatch.setattr("privirec.app.pages.web.LARGEST_UPLOAD", 100)
    assert visitor.upload("import", "a.csv", b"x" * 200).status == 413
    monkeypatch.undo()
    sent = {
        "Origin": f"http://{visitor.host}",
        "Content-Type": "multipart/form-data; boundary=b",
    }
    for body in (b"", b"--b", b"--b\r\nx\r\n\r\ny\r\n--b--", b"--b\r\n\xff" * 300, b"--b--"):
        status = visitor.ask("POST", visitor.room + "import", body, sent).status
        assert status in (400, 403), body
    assert mine(client) == before


def test_forgetting_everything_needs_a_tick(visitor: Visitor, client: Path) -> None:
    assert "4 interactions" in visitor.look("forget").words
    for form in (
        {},
        {"what": "everything"},
        {"what": "everything", "confirm": "no"},
        {"confirm": "yes"},
        {"confirm": "yes", "what": "x"},
    ):
        answer = visitor.change("forget", **form)
        assert answer.status == 400
        assert "Nothing was forgotten" in answer.words
    assert mine(client) == sorted(ME)
    answer = visitor.change("forget", what="history", confirm="yes")
    assert "Forgotten: 4 interactions." in answer.words
    assert mine(client) == []
    assert "Your history is empty" in visitor.look().words
    with Store(client / "history.db") as store:
        assert store.title("3") == title(3)
    visitor.change("add", item="3")
    visitor.change("forget", what="everything", confirm="yes")
    with Store(client / "history.db") as store:
        assert store.titles() == {}
    assert title(3).encode() not in (client / "history.db").read_bytes()


def test_forgetting_says_what_runs_have_used(visitor: Visitor, client: Path) -> None:
    with Store(client / "history.db") as store:
        store.begin_run("r1", Catalogue(list(ME)), datetime(2020, 1, 6, tzinfo=UTC))
        store.note_sent("r1")
    assert "Run r1" in visitor.look("forget").words
    answer = visitor.change("forget", item=ME[0])
    assert "your vector has left" in answer.words
    assert "can read in their difference what was forgotten" in answer.words


def test_a_long_history_has_pages(visitor: Visitor, client: Path) -> None:
    with Store(client / "history.db") as store:
        store.add(("me", str(1000 + at)) for at in range(150))
    first, second = visitor.look("history"), visitor.look("history?from=100")
    assert "Further items" in first.words
    assert "Earlier items" in second.words
    assert len(re.findall("Take it out", first.text + second.text)) == 154
    assert visitor.look("history?from=99999999").status == 200
    assert visitor.look("history?from=-1").text.count("Take it out") == 100


# --- without a server, a model, a federation ------------------------------------------------------


def test_a_store_and_a_model_are_enough(client: Path, model: Path) -> None:
    device = OwnDevice.at(None, client / "history.db", model)
    with serving(PersonSite(device)) as server:
        visitor = Visitor(server).enter()
        assert len(offered(visitor)) == 10
        assert "in no federation" in visitor.look("left").words
        assert "Computed from histories in one place" in visitor.look("left").words
        assert "nothing to agree to" in visitor.look("policy").words
        assert visitor.change("policy", **SETTINGS).status == 400


def test_a_new_device_has_nothing_and_says_so(tmp_path: Path) -> None:
    folder = ClientFolder.create(tmp_path / "new").folder
    with serving(PersonSite(OwnDevice.at(folder))) as server:
        visitor = Visitor(server).enter()
        assert "Your history is empty" in visitor.look().words
        visitor.look("search?text=x")
        visitor.change("add", item="x")
        assert "No model is on this device yet" in visitor.look().words
        assert "has not joined a federation" in visitor.look("left").words
        assert "Nothing was spent" in visitor.look("left").words
        assert "no model there" in visitor.look("item?id=x").words


def test_another_model_is_used_as_soon_as_it_is_installed(
    visitor: Visitor, client: Path, small: Dataset
) -> None:
    from privirec.models import TurboCF

    before = offered(visitor)
    TurboCF().fit(small.train).save(client.parent / "turbo")
    Installed(client / "model").install(client.parent / "turbo")
    assert offered(visitor) != before


def test_a_damaged_model_leaves_the_rest_of_the_page(visitor: Visitor, client: Path) -> None:
    (client / "model" / "current").write_text("nonsense\n")
    assert "damaged; install the artifact again" in visitor.look().words
    assert visitor.look("history").status == 200


def test_a_folder_without_a_device_is_refused_in_one_line(
    tmp_path: Path, client: Path, model: Path
) -> None:
    with pytest.raises(UsageError, match="name a client's folder, or a store"):
        OwnDevice.at(None)
    with pytest.raises(PrivirecError):
        OwnDevice.at(tmp_path / "nothing")
    with pytest.raises(UsageError, match=r"ends in \.db"):
        OwnDevice.at(None, tmp_path / "history.csv")
    with pytest.raises(ArtifactError):
        OwnDevice.at(None, client / "history.db", tmp_path)
    with Store(tmp_path / "two.db", create=True) as store:
        store.add([("ann", "3"), ("bob", "4")])
    with pytest.raises(UsageError, match="say which with --user"):
        OwnDevice.at(None, tmp_path / "two.db", model)
    assert OwnDevice.at(None, tmp_path / "two.db", model, "ann").user == "ann"


# --- the policy -----------------------------------------------------------------------------------


def test_the_policy_in_words_and_switches(visitor: Visitor, client: Path) -> None:
    words = visitor.look("policy").words
    for sentence in own_policy.in_words(Policy()):
        assert sentence in words
    assert "Nothing was changed." in visitor.change("policy", **SETTINGS).words
    changes = SETTINGS | {"most_epsilon": "2.5", "most_bytes_up": "1.5"}
    changes |= {"computations": ["item-degrees"]}
    del changes["takes_part"], changes["active"]
    words = visitor.change("policy", **changes).words
    for line in ("takes_part = false", 'server = "semi-honest"', "most_epsilon = 2.5"):
        assert line in words
    assert "This device takes part in nothing." in words
    assert Policy.load(client / "policy.toml") == Policy(
        takes_part=False,
        most_epsilon=2.5,
        most_bytes_up=1_500_000,
        computations=("item-degrees",),
        server="semi-honest",  # type: ignore[arg-type]
    )
    visitor.change("policy", **SETTINGS)
    assert Policy.load(client / "policy.toml") == Policy()
    visitor.change("policy", **(SETTINGS | {"level": "little"}))
    little = Policy.load(client / "policy.toml")
    assert (little.most_epsilon, little.most_epsilon_per_year) == (9.0, 4.0)
    visitor.change("policy", **(SETTINGS | {"level": "usual"}))
    assert Policy.load(client / "policy.toml") == Policy()
    assert visitor.change("policy", **(SETTINGS | {"level": "all"})).status == 400


def test_the_first_screens_have_no_technical_terms(visitor: Visitor) -> None:
    """Test that terms of cryptographers and statisticians are one click away, in details."""
    for path in ("", "history", "search?text=garden", "item?id=7", "left", "policy"):
        text = re.sub(r"<details.*?</details>", "", visitor.look(path).text, flags=re.DOTALL)
        words = re.sub(r"<[^>]*>", " ", text).lower()
        for term in ("epsilon", "delta", "secagg", " ring", "matrix", "cohort"):
            assert term not in words, (path, term)


def test_the_bar_turns_amber_and_red(client: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from privirec.app.pages import person_left
    from privirec.federated.dp.loss import Loss

    def painted(share: float) -> str:
        def spent(folder: Path) -> BudgetStatement:
            found = statement_of(folder)
            level = {each.setting: each.cap.mu * share**0.5 for each in found.policy.limits}
            return replace(found, spent={name: Loss(mu, 0.0) for name, mu in level.items()})

        monkeypatch.setattr(person_left, "statement_of", spent)
        with serving(PersonSite(OwnDevice.at(client))) as server:
            text = Visitor(server).enter().look("left").text
        (value,) = set(re.findall(r'aria-valuenow="(\d+)"', text))
        (level,) = set(re.findall(r'class="meter (\w+)"', text))
        return f"{level} {value}"

    assert painted(0.0) == "ok 0"
    assert painted(0.5).startswith("ok 5")
    assert painted(0.7).startswith("amber 7")
    assert painted(0.95).startswith("red 9")
    assert painted(1.0) == "red 100"


def test_a_budget_of_a_life_below_that_of_a_year_is_the_only_one_named() -> None:
    said = " ".join(own_policy.in_words(Policy(most_epsilon=4.0)))
    assert "about 3 updates of the usual size in all" in said
    assert "is right in at most 67 of 100" in said
    assert "year" not in said
    assert "a guess about you is then right in at most 67" in own_policy.allowance_in_short(
        Policy(most_epsilon=4.0)
    )


def test_settings_that_cannot_be_change_nothing(visitor: Visitor, client: Path) -> None:
    before = (client / "policy.toml").read_bytes()
    for name, value in (
        ("most_epsilon", "inf"),
        ("most_epsilon", "nan"),
        ("most_epsilon", "-1"),
        ("most_epsilon", ""),
        ("smallest_cohort", "1.5"),
        ("smallest_cohort", "1"),
        ("aggregators", "secagg++"),
        ("most_bytes_up", "1e999"),
    ):
        assert visitor.change("policy", **(SETTINGS | {name: value})).status == 400, name
    assert (client / "policy.toml").read_bytes() == before


def test_comments_in_the_file_stay(client: Path) -> None:
    path = client / "policy.toml"
    path.write_text("# mine\nmost_epsilon = 4  # little\nmost_sums = 5\n")
    assert own_policy.change(client, {"most_sums": 6, "takes_part": False}) == [
        "takes_part = false",
        "most_sums = 6",
    ]
    assert path.read_text() == (
        "# mine\nmost_epsilon = 4  # little\nmost_sums = 6\ntakes_part = false\n"
    )
    path.write_text('aggregators = [\n  "secagg",\n]\nmost_rounds = 5\n')
    own_policy.change(client, {"aggregators": ("secagg+",), "most_sums": 7})
    assert Policy.load(path) == Policy(aggregators=("secagg+",), most_sums=7)


def test_the_command_says_and_changes_the_same(client: Path) -> None:
    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["client", "policy", str(client), *arguments])
        assert done.exit_code == 0, done.exception
        return " ".join(done.stdout.split())

    assert "takes part in updates of models that keep to what follows" in run()
    said = run("--set", "takes_part=false", "--set", 'server="semi-honest"')
    assert "takes_part = false" in said
    assert "trusts the server" in run("--set", "server=semi-honest")
    for wrong, why in (
        ("x", "is not NAME=VALUE"),
        ("mots=1", "no setting mots"),
        ("most_sums=a", ""),
    ):
        done = CliRunner().invoke(app, ["client", "policy", str(client), "--set", wrong])
        assert isinstance(done.exception, UsageError)
        assert why in str(done.exception)


def test_search_on_the_command_line(client: Path, model: Path) -> None:
    store = ["--store", str(client / "history.db")]
    done = CliRunner().invoke(app, ["device", "search", "quiet garden", *store])
    assert "Quiet Garden" in done.stdout
    done = CliRunner().invoke(app, ["device", "search", "299", *store, "--artifact", str(model)])
    assert "299" in done.stdout
    done = CliRunner().invoke(app, ["device", "search", "zzz", *store])
    assert "nothing is called 'zzz'" in str(done.exception)
