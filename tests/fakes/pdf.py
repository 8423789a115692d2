"""PDFs by hand."""


def pdf(
    *pages: tuple[float, float],
    content: str = "1 0 0 rg 0 0 60 60 re f",
    objects: str = "",
    extra: str = "",
) -> bytes:
    """Each page has its size in points and `content`, by default a red square bottom left.

    `content` may draw the object 5, which `objects` brings.
    """
    kids = " ".join(f"{100 + n} 0 R" for n in range(len(pages)))
    parts = [
        "1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj",
        f"2 0 obj<</Type/Pages/Kids[{kids}]/Count {len(pages)}>>endobj",
        f"3 0 obj<</Length {len(content)}>>stream\n{content}\nendstream endobj",
        objects,
    ]
    for n, (width, height) in enumerate(pages):
        parts.append(
            f"{100 + n} 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 {width} {height}]/Contents 3 0 R"
            "/Resources<</XObject<</P 5 0 R>>>>>>endobj"
        )
    return ("%PDF-1.4\n" + "\n".join(parts) + f"\ntrailer<</Root 1 0 R{extra}>>\n%%EOF\n").encode()


def laughing_pdf(levels: int = 8, fan: int = 10, pages: int = 1) -> bytes:
    """A kilobyte or two that draws `fan ** levels` squares: forms that draw forms that draw forms."""
    forms = []
    for level in range(levels):
        content = "/P Do " * fan if level < levels - 1 else "0 0 50 50 re f " * fan
        forms.append(
            f"{5 + level} 0 obj<</Type/XObject/Subtype/Form/BBox[0 0 99 99]/Length {len(content)}"
            f"/Resources<</XObject<</P {6 + level} 0 R>>>>>>stream\n{content}\nendstream endobj"
        )
    return pdf(*[(100.0, 100.0)] * pages, content="/P Do", objects="\n".join(forms))


def encrypted_pdf() -> bytes:
    """A PDF that needs a password."""
    nonsense = "<" + "ab" * 32 + ">"
    encrypt = f"9 0 obj<</Filter/Standard/V 1/R 2/O {nonsense}/U {nonsense}/P -4>>endobj"
    return pdf((200, 100), objects=encrypt, extra="/Encrypt 9 0 R/ID[<00><00>]")
