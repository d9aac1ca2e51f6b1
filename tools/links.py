#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on a link of a Markdown page that leads nowhere: no such file, no such heading, or outside the repository.
tools/links.py --site DIR checks the built site instead (scripts/site): each link of its pages resolves within DIR, and nothing that a
page shows or runs comes from the network. mkdocs loads this file as its hook, so pages and site agree on what a link and an anchor is."""
import html.parser
import pathlib
import re
import sys
import urllib.parse

from source import ROOT, finish, line_of, name_of, repository_files

DOCS = ROOT / "docs"
# Pages outside docs/ that the site has, too.
BORROWED = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}

_FENCED = re.compile(r"^(?P<fence>```+|~~~+)[^\n]*\n.*?^(?P=fence)[ \t]*$|<!--.*?-->", re.M | re.S)
_CODE = re.compile(r"(?<!`)(`+)(?!`)(?:[^`]|(?!\1)`)+?\1(?!`)")
_LINK = re.compile(r"""(?P<picture>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)(?P<title>\s+"[^"]*")?\)""")
_ATTRIBUTE = re.compile(r"""(?P<before><[a-z]+\b[^<>]*?\b(?:href|src|srcset)=["'])(?P<target>[^"'\s]+)""")
_HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t]*#*$", re.M)
_NAMED_PAGE = re.compile(r"(?<!\[)`(?P<path>(?:docs/)[\w./-]+\.md|README\.md|CONTRIBUTING\.md)`")
_LIST = re.compile(r"^(?:[-*+]|\d+\.) ")


def blank(match):
    return re.sub(r"[^\n]", " ", match[0])


def prose(text):
    """The text without blocks, comments and code in it, every character where it was."""
    return _CODE.sub(blank, _FENCED.sub(blank, text))


def slug(heading, separator="-"):
    """The anchor of a heading, as repository pages make it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", separator)


def anchors_of(text):
    """Anchors of the headings; a repeated one has a number."""
    found, seen = set(re.findall(r"""<a (?:id|name)=["']([^"']+)""", text)), {}
    for heading in _HEADING.findall(_FENCED.sub(blank, text)):
        name = slug(heading)
        seen[name] = seen.get(name, -1) + 1
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
    return found


def links_of(text):
    """(target, offset) of each link, picture and attribute."""
    bare = prose(text)
    # A link's text may be code: only its brackets must be prose.
    for match in _LINK.finditer(_FENCED.sub(blank, text)):
        if bare[match.end() - 1] == ")":
            yield match["target"], match.start("target")
    for match in _ATTRIBUTE.finditer(bare):
        yield match["target"], match.start("target")


def is_elsewhere(target):
    return bool(re.match(r"[a-z][a-z0-9+.-]*:|//", target))


def faults_of(page, text):
    for target, offset in links_of(text):
        if is_elsewhere(target):
            continue
        path, _, anchor = urllib.parse.unquote(target).partition("#")
        file = (page.parent / path).resolve() if path else page
        is_page = file == page or file.suffix == ".md" and file.is_file()
        where = f"{name_of(page)}:{line_of(text, offset)}: {target}"
        if not file.is_relative_to(ROOT) or path.startswith("/"):
            yield f"{where} leads out of the repository"
        elif file != page and not file.exists():
            yield f"{where}: no such file"
        elif anchor and is_page and anchor not in anchors_of(text if file == page else file.read_text()):
            yield f"{where}: no such heading"


class Page(html.parser.HTMLParser):
    """Links, anchors and foreign parts of a page of the site."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors, self.foreign = [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors |= {values[key] for key in ("id", "name") if values.get(key)}
        loaded = values.get("src") or values.get("srcset") or (values.get("href") if tag == "link" else None)
        if loaded and is_elsewhere(loaded) and not loaded.startswith("data:") and values.get("rel") != "canonical":
            self.foreign.append(loaded)
        self.links += [value for value in (loaded, values.get("href")) if value and not is_elsewhere(value)]


def site_faults(site):
    pages = {file.resolve(): Page(file.read_text()) for file in sorted(site.rglob("*.html"))}
    if len(pages) < 10:
        yield f"{site}: only {len(pages)} pages"
    for file, page in pages.items():
        for link in page.foreign:
            yield f"{file.relative_to(site)}: {link} comes from the network"
        if file.name == "404.html":
            continue  # its links are seen from the root of a server
        for link in page.links:
            path, _, anchor = urllib.parse.unquote(link).partition("#")
            target = (file.parent / path.partition("?")[0]).resolve() if path else file
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                yield f"{file.relative_to(site)}: {link}: no such file"
            elif anchor and not anchor.startswith("__") and target in pages and anchor not in pages[target].anchors:
                yield f"{file.relative_to(site)}: {link}: no such heading"


# The hook of mkdocs. On the repository's page a link may lead to any file of it; the site holds docs/ alone. There a link to a source
# file becomes its text, as code, and a page that stands in backticks becomes a link.

def site_path(file):
    """Where the site has this file, or None."""
    if file.is_relative_to(DOCS) and file.exists():
        return file.relative_to(DOCS).as_posix()
    return BORROWED.get(name_of(file)) if file.is_relative_to(ROOT) else None


def rewritten(text, change):
    """The text with change(prose) in place of each part that is no block of code."""
    parts = []
    at = 0
    for fenced in _FENCED.finditer(text):
        parts += [(text[at:fenced.start()], True), (fenced[0], False)]
        at = fenced.end()
    parts.append((text[at:], True))
    return "".join(change(part) if is_prose else part for part, is_prose in parts)


def relinked(part, link):
    """The prose with link(match) in place of each link and picture that leads to a file."""
    bare = prose(part)

    def new(match):
        return match[0] if bare[match.end() - 1] != ")" or is_elsewhere(match["target"]) else link(match)

    return _LINK.sub(new, part)


def site_text(page, text):
    """The text of a page as the site has it. `page` is its file in the repository."""
    base = pathlib.PurePosixPath(site_path(page)).parent

    def moved(target):
        path, mark, anchor = target.partition("#")
        found = site_path((page.parent / path).resolve())
        return None if found is None else "../" * (len(base.parts)) + found + mark + anchor

    def link(match):
        if match["target"].startswith("#"):
            return match[0]
        new = moved(match["target"])
        if new:
            return f"{match['picture']}[{match['text']}]({new}{match['title'] or ''})"
        return match["text"] if "`" in match["text"] or " " in match["text"] else f"`{match['text']}`"

    def attribute(match):
        return match["before"] + (moved(match["target"]) or match["target"]) if not is_elsewhere(match["target"]) else match[0]

    def named(match):
        found = site_path(ROOT / match["path"])
        return f"[{match[0]}]({'../' * len(base.parts)}{found})" if found and ROOT / match["path"] != page else match[0]

    def change(part):
        return separate_lists(_NAMED_PAGE.sub(named, _ATTRIBUTE.sub(attribute, relinked(part, link))))

    return rewritten(text, change)


def index_text(text, repository):
    """The README as a package index shows it: links lead to `repository`, an address of GitHub's form. Without one, they are plain text."""

    def link(match):
        target = match["target"] if not match["target"].startswith("#") else f"README.md{match['target']}"
        if not repository:
            return f"*{match['text']}*" if match["picture"] else match["text"]
        view = "raw" if match["picture"] else "blob"
        return f"{match['picture']}[{match['text']}]({repository.rstrip('/')}/{view}/HEAD/{target})"

    return rewritten(text, lambda part: relinked(part, link))


def separate_lists(text):
    """A blank line before each list: repository pages need none, Python-Markdown does."""
    lines, done = text.split("\n"), []
    for line in lines:
        before = done[-1] if done else ""
        if _LIST.match(line) and before.strip() and not _LIST.match(before) and not before.startswith(" "):
            done.append("")
        done.append(line)
    return "\n".join(done)


def on_config(config):
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files, config):
    from mkdocs.structure.files import File
    for name, place in BORROWED.items():
        files.append(File.generated(config, place, content=site_text(ROOT / name, (ROOT / name).read_text())))
    return files


def on_page_markdown(markdown, page, config, files):
    file = DOCS / page.file.src_uri
    return site_text(file, markdown) if file.exists() else markdown


def main():
    if sys.argv[1:2] == ["--site"]:
        finish("links", list(site_faults(pathlib.Path(sys.argv[2]).resolve())))
    faults = []
    for page in sorted(path for path in repository_files() if path.suffix == ".md"):
        faults += faults_of(page, page.read_text())
    finish("links", faults)


if __name__ == "__main__":
    main()
