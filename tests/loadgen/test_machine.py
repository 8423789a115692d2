"""What a report says of the machine."""

from loadgen import machine

CPUINFO = """\
processor\t: 0
model name\t: Some CPU @ 2 GHz
flags\t\t: fpu sse2 avx2 avx512f avx512_vnni
"""


def test_the_processor_and_its_instruction_sets_are_those_of_cpuinfo() -> None:
    assert machine.cpu_name(CPUINFO) == "Some CPU @ 2 GHz"
    assert machine.instruction_sets(CPUINFO) == ("avx2", "avx512f", "avx512_vnni")
    assert machine.cpu_name("") == "unknown"
    assert machine.instruction_sets("") == ()


def test_the_section_names_versions_and_commands() -> None:
    section = machine.look().section(["loadgen bench receipts"])
    assert "numpy" in section.data["packages"]
    assert "`loadgen bench receipts`" in section.markdown
