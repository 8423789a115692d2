"""What the baseline found, as parts of a report. Pure."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from loadgen import floor
from loadgen.baseline import Baseline, Load, Measured
from loadgen.peers import measure as peers
from loadgen.report import Section, table
from loadgen.score import Score, score


def sections(found: Baseline, called: str) -> list[Section]:
    """The tables; `called` says which documents they are about."""
    return [speed(found, called), floors(found), processor(found), fullness(found)]


def _accuracy(one: Score | None) -> tuple[str, str]:
    return (f"{one.found:.3f}", f"{one.cer_percent:.2f}") if one else ("", "")


def speed(found: Baseline, called: str) -> Section:
    """Seconds a page of everybody, and the two ratios that matter."""
    rows: list[tuple[object, ...]] = []
    data: dict[str, Any] = {"documents": called, "door": found.plan.door, "left_out": list(found.left_out)}
    labels = found.plan.corpus.labels
    for one in found.measured:
        outcome = found.outcomes.get(one.system.peer or "")
        times = outcome.seconds_a_page * one.load.rate if outcome else None
        name = f"{one.system.models}, {one.system.engine}"
        rows.append((f"bare models, {name}", f"{one.floor_s:.3f}", "1.00", "", "", ""))
        shown = (f"{one.of_floor:.2f}", f"{times:.2f}" if times else "")
        rows.append((f"**pipeline, {name}**", f"{1 / one.load.rate:.3f}", *shown, *_accuracy(one.accuracy)))
        data[one.system.name] = asdict(one) | {
            "seconds_a_page": 1 / one.load.rate,
            "floor_seconds_a_page": one.floor_s,
            "share_of_floor": one.of_floor,
            "times_peer": times,
        }
    for outcome in found.outcomes.values():
        peer = peers.PEERS[outcome.peer]
        accuracy = score(labels, outcome.texts())
        name = f"{peer.title} {peer.version}, weights of {peer.models}"
        rows.append((name, f"{outcome.seconds_a_page:.3f}", "", "1.00", *_accuracy(accuracy)))
        data[outcome.peer] = {
            "seconds_a_page": outcome.seconds_a_page,
            "version": peer.version,
            "setting": outcome.setting,
            "tried": dict(outcome.tried),
            "accuracy": asdict(accuracy) if accuracy else None,
        }
    head = ["system", "s/page", "speed against the floor", "speed against the peer", "found", "CER %"]
    text = [
        _how(found, called),
        table(head, rows),
        *_settings(found),
        *(f"Left out: {w}." for w in found.left_out),
    ]
    return Section("Speed", "\n\n".join(text), data)


def _how(found: Baseline, called: str) -> str:
    scale, pages = found.plan.scale, len(found.plan.corpus.documents)
    return (
        f"Pages: {called} ({pages} pages).\n\n"
        f"* Pipeline: {found.plan.door}, gateway, detector, recognizer and back, all on this machine, with"
        " default settings. Every page goes through once to warm up, then"
        f" {scale.rounds(pages)} times with all of them waiting from the start. Seconds a page are those"
        f" between answer number {scale.edge} and the answer {scale.edge} before the last.\n"
        "* Bare models: a loop without serving; pages at longest side 960 and lines in width steps of 32 at"
        " hand; before and after the pipeline's run, at the best of the settings below.\n"
        "* Peers: in one process, the seconds of their own call from file to texts, after"
        f" {peers.WARM_UP} pages.\n"
        "* `found`: share of the labelled strings that were read whole. CER: character error rate."
    )


def _settings(found: Baseline) -> Iterator[str]:
    for outcome in found.outcomes.values():
        peer = peers.PEERS[outcome.peer]
        tried = "; ".join(f"{label}: {seconds:.2f}" for label, seconds in outcome.tried.items())
        yield (
            f"{peer.title} {peer.version} ran with: {outcome.setting}."
            f" Tried on the first {found.plan.scale.choose_from} pages (s/page): {tried}."
        )


def floors(found: Baseline) -> Section:
    """The bare models in detail."""
    rows = [
        (
            f"{one.system.models}, {one.system.engine}",
            *(
                " / ".join(f"{1000 * getattr(p, f'{role}_s'):.0f}" for p in one.passes)
                for role in floor.ROLES
            ),
            one.settings["det"],
            one.settings["rec"],
        )
        for one in found.measured
    ]
    head = ["models", "det ms/page", "rec ms/page", "det setting", "rec setting"]
    text = "Milliseconds before / after the pipeline's run.\n\n" + table(head, rows)
    return Section(
        "Floor", text, {one.system.name: [asdict(p) for p in one.passes] for one in found.measured}
    )


def processor(found: Baseline) -> Section:
    """Where the processor time of the pipeline goes."""
    names = list(dict.fromkeys(name for one in found.measured for name in one.load.cpu_ms))
    rows = [(name, *(f"{one.load.cpu_ms.get(name, 0):.0f}" for one in found.measured)) for name in names]
    head = ["ms of processor time a page", *(one.system.name for one in found.measured)]
    data = {one.system.name: dict(one.load.cpu_ms) for one in found.measured}
    return Section("Processor time by process", table(head, rows), data)


def fullness(found: Baseline) -> Section:
    """How well batches are filled when there is more work than can be done."""
    loads = [(one, kind, load) for one in found.measured for kind, load in _loads(one)]
    rows = [
        (one.system.name, kind, stage, f"{w.valid_share:.3f}", f"{w.mean_batch:.2f}")
        for one, kind, load in loads
        for stage, w in load.waste.items()
    ]
    data: dict[str, Any] = {}
    for one, kind, load in loads:
        data.setdefault(one.system.name, {})[kind] = {stage: asdict(w) for stage, w in load.waste.items()}
    head = ["system", "load", "stage", "valid pixels / batch pixels", "mean batch"]
    return Section("Batches at saturation", table(head, rows), data)


def _loads(one: Measured) -> list[tuple[str, Load]]:
    return [("the pages", one.load), *([("pages and slips mixed", one.mixed)] if one.mixed else [])]
