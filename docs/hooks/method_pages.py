"""Pages, tables and navigation of the methods, from what each declares: a new method needs no page written by hand.

A page may still be written: docs/methods/<name>.md then takes the place of the docstring, and says by marks such as
`<!-- methods: settings -->` where the parts that are made here go.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import measured
import torch
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from torch import nn

from tidefast import methods
from tidefast.core.options import options_of
from tidefast.methods.about import Family
from tidefast.methods.base import Method, registry

DOCS = Path(__file__).parents[1]
MARK = re.compile(r"<!-- methods: ([a-z ]+) -->")
PARTS = ("facts", "equation", "settings", "measured")
"""What every page of a method has."""


def classes() -> dict[str, type[Method]]:
    """The methods of the package by name, family by family, then by title."""
    own = {name: registry.get(name) for name in registry.names()}
    own = {name: cls for name, cls in own.items() if cls.__module__.startswith("tidefast.")}
    order = get_args(Family)
    return dict(sorted(own.items(), key=lambda item: (order.index(item[1].about.family), item[1].about.title.lower())))


def page(name: str) -> str:
    """The page of a method, or of what else has one in docs/methods, with its marks filled in."""
    path = DOCS / "methods" / f"{name}.md"
    return filled(path.read_text() if path.exists() else template(registry.get(name)), name)


def template(cls: type[Method]) -> str:
    """The page of a method for which none is written."""
    parts = [f"# {cls.about.title}", inspect.getdoc(cls) or "", *map(_mark, PARTS[:3])]
    return "\n\n".join([*parts, example(cls), _mark("measured")]) + "\n"


def _mark(part: str) -> str:
    return f"<!-- methods: {part} -->"


def filled(text: str, name: str = "") -> str:
    """A page with what its marks stand for; `name` is that of the method it is about, if any."""
    marks = set(MARK.findall(text))
    if name in registry.names() and not set(PARTS) <= marks:
        raise ValueError(f"docs/methods/{name}.md lacks the marks {', '.join(sorted(set(PARTS) - marks))}")
    return MARK.sub(lambda found: _part(found[1], name), text)


def _part(mark: str, name: str) -> str:
    results = measured.read()
    titles = [cls.about.title for cls in classes().values()]
    match mark:
        case "facts":
            return facts(registry.get(name))
        case "equation":
            return equation(registry.get(name))
        case "settings":
            return settings(registry.get(name))
        case "measured":
            title = registry.get(name).about.title if name in registry.names() else name.upper()
            return f"## On the bundled benchmark\n\n{measured.section(title, f'../images/methods/{name}.svg', results)}"
        case "all methods":
            return overview()
        case "all results":
            return measured.overview([*titles, "COME"], results)
        case "methods by need":
            return by_need()
        case "more methods":
            return reference()
    raise ValueError(f"nothing is known by the mark {_mark(mark)}")


# -- the parts of a page ------------------------------------------------------------------------------------------


def facts(cls: type[Method]) -> str:
    """What a method adapts, costs and needs, and where it comes from."""
    about, rows = cls.about, [("adapts", cls.about.adapts), ("forwards, backwards per batch", cost(cls))]
    rows.append(("needs beyond the model", needs(cls)))
    if about.paper is not None:
        rows.append(("paper", str(about.paper)))
        code = about.paper.code
        rows += [("released code", f"[{code}](https://github.com/{code})")] if code else []
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)])


def equation(cls: type[Method]) -> str:
    """The equations of a method."""
    return "\n\n".join(f"$${tex.strip()}$$" for tex in inspect.cleandoc(cls.about.equation).split("\n\n") if tex)


def cost(cls: type[Method]) -> str:
    """Passes of a step, from no sample selected to all of them, and what else there is to say."""
    least, most = cls().passes(0.0), cls().passes(1.0)
    spans = [f"{low:g}" if low == high else f"{low:g} to {high:g}" for low, high in zip(least, most, strict=True)]
    return f"{', '.join(spans)}{f' ({cls.about.cost})' if cls.about.cost else ''}"


def needs(cls: type[Method]) -> str:
    """Source data and kind of network, in words."""
    method = cls()
    network = "a vision transformer" if cls.transformers_only else cls.about.needs
    return "; ".join(filter(None, (method.needs_source, network))) or "-"


def settings(cls: type[Method]) -> str:
    """A row for each hyperparameter: its default, in presets too, what is legal, what it is."""
    usual, columns = cls(), presets(cls)
    rows = []
    for option in options_of(cls):
        values = [_shown(getattr(method, option.name)) for method in (usual, *columns.values())]
        rows.append([f"`{option.name}`", *values, option.legal, option.meaning])
    if not isinstance(usual, methods.Source):
        rows.append(["optimiser", *(_optimizer(method) for method in (usual, *columns.values())), "", "by default"])
    if not rows:
        return "It has no hyperparameters."
    heads = ["setting", "default", *(f"`{name}`" for name in columns), "legal", ""]
    kept = [place for place, head in enumerate(heads) if head in ("setting", "default") or any(r[place] for r in rows)]
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line[place].replace('|', chr(92) + '|') for place in kept)} |" for line in lines)


def presets(cls: type[Method]) -> dict[str, Method]:
    """The published settings that a class offers beside its defaults, by how they are called."""
    found: dict[str, Method] = {}
    names = [name for base in cls.__mro__ for name, member in vars(base).items() if isinstance(member, classmethod)]
    for name in dict.fromkeys(names):
        make = getattr(cls, name)
        sizes = [(10,), (100,)] if "num_classes" in inspect.signature(make).parameters else [()]
        for size in sizes:
            method = make(*size)
            if method not in found.values():
                found[f"{name}({', '.join(map(str, size))})"] = method
    return found


def example(cls: type[Method]) -> str:
    """The three lines that use a method."""
    model = "vit" if cls.transformers_only else "model"
    needed = cls().needs_source
    source = "" if needed is None else ", source=(source_images, source_labels)"
    return textwrap.dedent(f"""\
        ```python
        import tidefast

        adapter = tidefast.adapt({model}, "{cls.name}"{source})
        logits = adapter(images)
        ```""")


def _shown(value: Any) -> str:
    if isinstance(value, Method):
        return f"`{value.name}`"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value) or "()"
    if value is None or isinstance(value, (str, int)):
        return f"`{value!r}`" if isinstance(value, str) else str(value)
    return f"`{getattr(value, '__name__', type(value).__name__)}`"


def _optimizer(method: Method) -> str:
    optimizer = method.optimizer([nn.Parameter(torch.zeros(1))])
    group = optimizer.param_groups[0]
    said = [f"{type(optimizer).__name__.strip('_')} {group['lr']:g}"]
    said += [f"momentum {group['momentum']:g}"] if group.get("momentum") else []
    said += ["Nesterov"] if group.get("nesterov") else []
    return ", ".join(said)


# -- pages about all methods --------------------------------------------------------------------------------------


def overview() -> str:
    """A row for each method."""
    rows = [
        f"| [{cls.about.title}](methods/{name}.md) | {cls.about.adapts} | {needs(cls)} | {cost(cls)} |"
        for name, cls in classes().items()
    ]
    head = "| method | adapts | needs beyond the model | forwards, backwards per batch |"
    return "\n".join([head, "| --- | --- | --- | --- |", *rows])


def by_need() -> str:
    """Names of methods by the source data that they need at their defaults."""
    groups: dict[str, list[str]] = {"nothing but the model": [], "source images": [], "labelled source images": []}
    for name, cls in classes().items():
        needed = cls().needs_source
        kind = 0 if needed is None else 2 if "labelled source" in needed.replace("unlabelled", "") else 1
        list(groups.values())[kind].append(f"`{name}`")
    rows = [f"| {need} | {', '.join(names)} |" for need, names in groups.items()]
    return "\n".join(["| needs | methods |", "| --- | --- |", *rows])


def reference() -> str:
    """Methods that `tidefast.methods` offers without naming them, which the reference would not find by itself."""
    more = [cls for cls in classes().values() if cls.__name__ not in methods.__all__]
    return "\n\n".join(f"::: {cls.__module__}.{cls.__qualname__}" for cls in more)


def navigation() -> Iterator[dict[str, list[dict[str, str]]]]:
    """The pages of the methods, by family."""
    for family in get_args(Family):
        pages = [{cls.about.title: f"methods/{n}.md"} for n, cls in classes().items() if cls.about.family == family]
        if pages:
            yield {family: pages}


# -- called by mkdocs ---------------------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> None:
    """Put the pages of methods into the navigation, after the page about all of them."""
    nav = next(entry["Methods"] for entry in config.nav or [] if "Methods" in entry)
    nav[1:1] = navigation()


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages that nobody wrote, and the figures."""
    for name, cls in classes().items():
        if files.get_file_from_path(f"methods/{name}.md") is None:
            files.append(File.generated(config, f"methods/{name}.md", content=template(cls)))
    titles = {name: cls.about.title for name, cls in classes().items()} | {"come": "COME"}
    for name, title in titles.items():
        contest = measured.Contest.of(title, measured.read())
        if contest is not None:
            picture = measured.figure(contest) + "\n"
            files.append(File.generated(config, f"images/methods/{name}.svg", content=picture))


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Fill in the marks of a page."""
    name = Path(page.file.src_uri)
    return filled(markdown, name.stem if name.parent.name == "methods" else "")
