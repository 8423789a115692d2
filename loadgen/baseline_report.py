"""What the baseline found, as parts of a report. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from loadgen import floor
from loadgen.baseline import Baseline, Load, Measured
from loadgen.peers import measure as peers
from loadgen.peers.measure import Outcome
from loadgen.report import Section, table
from loadgen.score import Score, score
from loadgen.studies.figures import Verdict, verdict_list, with_verdicts

LEAST_OF_FLOOR = 0.8
LEAST_VALID = 0.9
LEAST_OF_BATCH = 0.7


def sections(found: Baseline, called: str) -> list[Section]:
    """The tables; `called` says which documents they are about."""
    return [speed(found, called), floors(found), processor(found), fullness(found)]


def _accuracy(one: Score | None) -> tuple[str, str]:
    return (f"{one.found:.3f}", f"{one.cer_percent:.2f}") if one else ("", "")


def speed(found: Baseline, called: str) -> Section:
    """Seconds a page of everybody, and the two ratios that matter."""
    systems = [
        row for one in found.measured for row in _system_rows(one, found.outcomes.get(one.system.peer))
    ]
    scores = {name: score(found.plan.corpus.labels, it.texts()) for name, it in found.outcomes.items()}
    others = [_peer_row(outcome, scores[name]) for name, outcome in found.outcomes.items()]
    verdicts = [verdict for one in found.measured for verdict in _verdicts(one, found.outcomes, scores)]
    head = ["system", "s/page", "speed against the floor", "speed against the peer", "found", "CER %"]
    left_out = [f"Left out: {what}." for what in found.left_out]
    parts = [_how(found, called), table(head, systems + others), verdict_list(verdicts), *_settings(found)]
    data: dict[str, Any] = {"documents": called, "door": found.plan.door, "left_out": list(found.left_out)}
    data |= {
        one.system.name: _system_data(one, found.outcomes.get(one.system.peer)) for one in found.measured
    }
    data |= {name: _peer_data(outcome, scores[name]) for name, outcome in found.outcomes.items()}
    return Section("Speed", "\n\n".join(parts + left_out), with_verdicts(data, verdicts))


def times(one: Measured, outcome: Outcome | None) -> float | None:
    """Speed of the pipeline as a multiple of the peer's."""
    return outcome.seconds_a_page * one.load.rate if outcome else None


def _system_rows(one: Measured, outcome: Outcome | None) -> list[tuple[str, ...]]:
    name, multiple = f"{one.system.models}, {one.system.engine}", times(one, outcome)
    shown = (f"{one.of_floor:.2f}" if one.of_floor else "", f"{multiple:.2f}" if multiple else "")
    pipeline = (f"**pipeline, {name}**", f"{1 / one.load.rate:.3f}", *shown, *_accuracy(one.accuracy))
    if one.beneath is None:
        return [pipeline]
    return [(f"bare models, {name}", f"{one.beneath.seconds:.3f}", "1.00", "", "", ""), pipeline]


def _peer_row(outcome: Outcome, accuracy: Score | None) -> tuple[str, ...]:
    peer = peers.PEERS[outcome.peer]
    name = f"{peer.title} ({peer.version}), weights of {peer.models}"
    return (name, f"{outcome.seconds_a_page:.3f}", "", "1.00", *_accuracy(accuracy))


def _system_data(one: Measured, outcome: Outcome | None) -> dict[str, Any]:
    return asdict(one) | {
        "seconds_a_page": 1 / one.load.rate,
        "floor_seconds_a_page": one.beneath.seconds if one.beneath else None,
        "share_of_floor": one.of_floor,
        "times_peer": times(one, outcome),
    }


def _peer_data(outcome: Outcome, accuracy: Score | None) -> dict[str, Any]:
    return {
        "seconds_a_page": outcome.seconds_a_page,
        "version": peers.PEERS[outcome.peer].version,
        "setting": outcome.setting,
        "tried": dict(outcome.tried),
        "accuracy": asdict(accuracy) if accuracy else None,
    }


def _verdicts(
    one: Measured, outcomes: Mapping[str, Outcome], scores: Mapping[str, Score | None]
) -> Iterator[Verdict]:
    """What was promised of a system."""
    name, peer = one.system.models, peers.PEERS[one.system.peer].title
    if one.of_floor is not None:
        claim = f"{name} reaches at least {LEAST_OF_FLOOR:g} of its floor's speed"
        yield Verdict(claim, f"{one.of_floor:.2f}", one.of_floor >= LEAST_OF_FLOOR)
    if multiple := times(one, outcomes.get(one.system.peer)):
        claim = f"{name} is at least {one.system.times_peer:g} times as fast as {peer}"
        yield Verdict(claim, f"{multiple:.2f}", multiple >= one.system.times_peer)
    ours, theirs = one.accuracy, scores.get(one.system.peer)
    if ours and theirs:
        shown = " against ".join(f"found {s.found:.3f}, CER {s.cer_percent:.2f}" for s in (ours, theirs))
        holds = ours.found >= theirs.found and ours.cer_percent <= theirs.cer_percent
        yield Verdict(f"{name} reads no less well than {peer}", shown, holds)


def _how(found: Baseline, called: str) -> str:
    scale, pages = found.plan.scale, len(found.plan.corpus.documents)
    return (
        f"Pages: {called} ({pages} pages).\n\n"
        f"* Pipeline: {found.plan.door}, gateway, detector, recognizer and back, all on this machine, with"
        f" default settings; {scale.rounds(pages) * pages + 2 * scale.edge} pages that wait from the start."
        f" Seconds a page are those between answer number {scale.edge} and the answer {scale.edge} before the"
        " last.\n"
        "* Bare models: a loop without serving; pages at longest side 960 and lines in width steps of 32 at"
        " hand, all of them once: a half of the batches right after the pipeline's run, the other after the"
        " mixed load if there is one; at the best of the settings below.\n"
        "* Peers: in one process, all pages once, the seconds of their own call from file to texts, after"
        f" {peers.WARM_UP} pages.\n"
        "* `found`: share of the labelled strings that were read whole. CER: character error rate."
    )


def _settings(found: Baseline) -> Iterator[str]:
    for outcome in found.outcomes.values():
        peer = peers.PEERS[outcome.peer]
        if not outcome.tried:
            yield f"{peer.title} ({peer.version}) ran with: {outcome.setting}; no other setting was tried."
            continue
        tried = "; ".join(f"{label}: {seconds:.2f}" for label, seconds in outcome.tried.items())
        yield (
            f"{peer.title} ({peer.version}) ran with: {outcome.setting}."
            f" Tried on the first {found.plan.scale.choose_from} pages (s/page): {tried}."
        )


def floors(found: Baseline) -> Section:
    """The bare models in detail."""
    measured = [(one, one.beneath) for one in found.measured if one.beneath]
    rows = [
        (
            f"{one.system.models}, {one.system.engine}",
            *(
                " / ".join(f"{1000 * getattr(p, f'{role}_s'):.0f}" for p in beneath.passes)
                for role in floor.ROLES
            ),
            str(beneath.settings["det"]),
            str(beneath.settings["rec"]),
        )
        for one, beneath in measured
    ]
    head = ["models", "det ms/page", "rec ms/page", "det setting", "rec setting"]
    text = (
        "Right after the pipeline's run / later: each a half of the batches, which together are one run.\n\n"
    )
    text += table(head, rows)
    return Section(
        "Floor", text, {one.system.name: [asdict(p) for p in beneath.passes] for one, beneath in measured}
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
    verdicts = [verdict for one, kind, load in loads for verdict in _filled(one, kind, load)]
    head = ["system", "load", "stage", "valid pixels / batch pixels", "mean batch"]
    text = f"{table(head, rows)}\n\n{verdict_list(verdicts)}"
    return Section("Batches at saturation", text, with_verdicts(data, verdicts))


def _loads(one: Measured) -> list[tuple[str, Load]]:
    return [("the pages", one.load), *([("pages and slips mixed", one.mixed)] if one.mixed else [])]


def _filled(one: Measured, kind: str, load: Load) -> Iterator[Verdict]:
    """What was promised of full batches; the most that pays is the best batch of the bare model."""
    if one.beneath is None:
        return
    lines, best = load.waste["recognizer"], one.beneath.settings["rec"].batch
    name = f"{one.system.models}, {kind}"
    claim = f"{name}: at least {LEAST_VALID:g} of the recognizer's pixels are no padding"
    yield Verdict(claim, f"{lines.valid_share:.3f}", lines.valid_share >= LEAST_VALID)
    least = LEAST_OF_BATCH * best
    claim = f"{name}: mean recognizer batch at least {LEAST_OF_BATCH:g} of {best}, the best of the bare model"
    yield Verdict(claim, f"{lines.mean_batch:.2f}", lines.mean_batch >= least)
