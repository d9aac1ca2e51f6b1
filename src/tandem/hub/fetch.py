# SPDX-License-Identifier: Apache-2.0
"""Fetches a model or a data set from a hub through the hub's own package: huggingface_hub or modelscope.

fetch.cpp runs it in a process of its own, scripts/get as a module. Arguments: kind, host, repository, path, revision, and for a folder
outside the hub's cache that folder. One line of JSON on standard output: {"path":, "revision":} or {"what":, "right":}."""
import fnmatch
import hashlib
import json
import os
import re
import sys

HUGGING_FACE, MODELSCOPE = "hf", "modelscope"
SITES = {HUGGING_FACE: "https://huggingface.co", MODELSCOPE: "https://modelscope.cn"}
PACKAGES = {HUGGING_FACE: "huggingface_hub", MODELSCOPE: "modelscope"}
MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
OTHER_WEIGHTS = ("consolidated*",)  # the same weights again, in another form
DATA_SUFFIXES = (".jsonl", ".json", ".parquet")
NO_ROWS = ("dataset_infos.json", "config.json", "dataset_info.json")
SPLITS = {"train": ("train",), "held_out": ("test", "validation", "valid", "val", "dev", "eval")}
WAIT_S = 20  # for an answer of the site


class Refused(Exception):
    """What is wrong, and what would be right."""

    def __init__(self, what, right):
        super().__init__(what)
        self.what, self.right = what, right


class Unreachable(Exception):
    """The site does not answer."""


def model_files(names):
    """Those of a repository that a model of Tandem is made of: in its root, weights in safetensors alone."""
    wanted = [n for n in names if "/" not in n and any(fnmatch.fnmatch(n, p) for p in MODEL_FILES)
              and not any(fnmatch.fnmatch(n, p) for p in OTHER_WEIGHTS)]
    missing = [what for what, there in (("config.json", "config.json" in wanted),
                                        ("*.safetensors", any(n.endswith(".safetensors") for n in wanted))) if not there]
    if missing:
        raise Refused(f"holds no {' and no '.join(missing)}", "a repository with a model in safetensors")
    return wanted


def data_file(names, path, split):
    """The one file of a split, below `path` or in the whole repository."""
    files = sorted(n for n in names if n.endswith(DATA_SUFFIXES) and os.path.basename(n) not in NO_ROWS)
    if path in files:
        return path
    below = [n for n in files if not path or n.startswith(path + "/")]
    if not below:
        raise Refused(f"holds no .jsonl, .json or .parquet file{' below ' + path if path else ''}",
                      f"one of {', '.join(files[:8])}" if files else "a repository of such files")
    for word in SPLITS[split]:
        found = [n for n in below if re.search(rf"(^|[/_.-]){word}([/_.-]|$)", n)]
        if len(found) == 1:
            return found[0]
        if found:
            raise Refused(f"holds several files of {word}: {', '.join(found[:8])}",
                          f"the path of one behind the name, as in hf:OWNER/NAME/{found[0]}; data.mix takes several")
    if len(below) == 1 and split == "train":
        return below[0]
    raise Refused(f"names no file {SPLITS[split][0]}", f"the path of one of {', '.join(below[:8])} behind the name")


def is_commit(revision):
    return re.fullmatch("[0-9a-f]{40}", revision or "") is not None


def type_of(kind):
    """What a hub calls a repository of that kind."""
    return "model" if kind == "model" else "dataset"


def names_below(folder):
    return [os.path.relpath(os.path.join(at, name), folder).replace(os.sep, "/") for at, _, names in os.walk(folder) for name in names]


def chosen(names, kind, path):
    return model_files(names) if kind == "model" else [data_file(names, path, kind)]


def is_whole(folder, files):
    """Whether a fetched folder has all of it: an index names every shard of a model."""
    index = os.path.join(folder, "model.safetensors.index.json")
    if "model.safetensors.index.json" in files:
        with open(index, encoding="utf-8") as text:
            files = [*files, *set(json.load(text)["weight_map"].values())]
    return all(os.path.exists(os.path.join(folder, name)) for name in files)


def told(error):
    """The names of an error's classes, by which it is known, since their bases differ between a package's versions; its first line."""
    lines = str(error).strip().splitlines()
    return {kind.__name__ for kind in type(error).__mro__}, lines[0] if lines else type(error).__name__


class HuggingFace:
    """Through huggingface_hub, in its own cache: environment variables such as HF_ENDPOINT, HF_HOME and HF_TOKEN count."""

    def __init__(self):
        if not sys.stderr.isatty():
            os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        import huggingface_hub as hub
        from huggingface_hub import constants
        self.hub, self.cache, self.site = hub, constants.HF_HUB_CACHE, constants.ENDPOINT

    def guarded(self, call):
        """What the package's errors mean to a user."""
        try:
            return call()
        except Exception as e:
            kinds, line = told(e)
            if "GatedRepoError" in kinds:
                raise Refused("is gated: " + line, "accept its terms on the site, then HF_TOKEN=... or `hf auth login`") from e
            if "RevisionNotFoundError" in kinds:
                raise Refused("has no such revision", "a branch, a tag or a commit behind the @") from e
            if kinds & {"RepositoryNotFoundError", "HFValidationError"}:
                raise Refused("is not there, or not for everybody", "OWNER/NAME as on the site; of a private one HF_TOKEN=...") from e
            if kinds & {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectionError", "ConnectError", "Timeout", "TimeoutException",
                        "TransportError", "HfHubHTTPError"}:
                raise Unreachable(f"{type(e).__name__}: {line}") from e
            raise

    def stored(self, kind, repository, revision):
        """The folder of the cache that a revision was fetched to; None without one. It may lack files."""
        cache = os.path.join(self.cache, f"{type_of(kind)}s--{repository.replace('/', '--')}")
        ref = os.path.join(cache, "refs", revision or "main")
        if not is_commit(revision) and os.path.exists(ref):
            with open(ref, encoding="utf-8") as text:
                revision = text.read().strip()
        folder = os.path.join(cache, "snapshots", revision)
        return folder if is_commit(revision) and os.path.isdir(folder) else None

    def listed(self, kind, repository, revision):
        """The commit that a revision means, and the names of its files."""
        info = self.guarded(lambda: self.hub.HfApi().repo_info(repository, repo_type=type_of(kind), revision=revision or None,
                                                               timeout=WAIT_S))
        return info.sha, [file.rfilename for file in info.siblings or []]

    def fetch(self, kind, repository, revision, files, into):
        """The folder; in the cache its name is the commit."""
        return self.guarded(lambda: self.hub.snapshot_download(repository, repo_type=type_of(kind), revision=revision or None,
                                                               allow_patterns=files, local_dir=into))


class ModelScope:
    """Through modelscope_hub, which the package modelscope brings. What is kept goes by a checksum of the files' names and checksums."""

    def __init__(self):
        if not sys.stderr.isatty():
            os.environ.setdefault("TQDM_DISABLE", "1")
        from modelscope_hub.api import HubApi
        self.api = HubApi()
        self.root = os.path.join(os.environ.get("MODELSCOPE_CACHE", os.path.expanduser("~/.cache/modelscope")), "pinned")
        self.site = SITES[MODELSCOPE]
        self.checksum, self.branch = "", "master"

    def guarded(self, call):
        try:
            return call()
        except Exception as e:
            kinds, line = told(e)
            if kinds & {"NotExistError", "AuthenticationError", "PermissionDeniedError"}:
                raise Refused("is not there, not for everybody, or has no such revision", "OWNER/NAME and @BRANCH as on the site") from e
            if kinds & {"NetworkError", "ConnectionError", "Timeout", "RequestException", "ServerError"}:
                raise Unreachable(f"{type(e).__name__}: {line}") from e
            raise

    def folders(self, kind, repository):
        return os.path.join(self.root, f"{type_of(kind)}s--{repository.replace('/', '--')}", "snapshots")

    def stored(self, kind, repository, revision):
        """The folder of a checksum; of the default branch the one that was fetched last."""
        folders = self.folders(kind, repository)
        names = [name for name in (os.listdir(folders) if os.path.isdir(folders) else []) if is_commit(name)]
        names = [name for name in names if name == revision] if revision else names
        return max((os.path.join(folders, name) for name in names), key=os.path.getmtime, default=None)

    def listed(self, kind, repository, revision):
        self.branch = "master" if is_commit(revision) else revision or "master"
        files = self.guarded(lambda: self.api.list_repo_files(repository, type_of(kind), revision=self.branch, recursive=True))
        files = sorted((file for file in files if file.type != "tree"), key=lambda file: file.path)
        text = "".join(f"{file.path} {file.size} {file.sha256 or file.blob_id}\n" for file in files)
        self.checksum = hashlib.sha256(text.encode()).hexdigest()[:40]
        if is_commit(revision) and revision != self.checksum:
            raise Refused(f"is another now than the pinned {revision}", "the folder of before, or the name alone for the new one")
        return self.checksum, [file.path for file in files]

    def fetch(self, kind, repository, revision, files, into):
        folder = into or os.path.join(self.folders(kind, repository), self.checksum)
        self.guarded(lambda: self.api.download_repo(repository, repo_type=type_of(kind), revision=self.branch, local_dir=folder,
                                                    allow_patterns=files))
        return folder


def hub_of(host):
    try:
        return HuggingFace() if host == HUGGING_FACE else ModelScope()
    except ImportError as e:
        raise Refused(f"is fetched by the Python package {PACKAGES[host]}, and {sys.executable} has none ({e})",
                      f"`scripts/setup {PACKAGES[host]}`; or the files from {SITES[host]} in a folder, and its path as the name") from e


def by_hand(site, kind, repository, path, revision):
    """What somebody does who has the network elsewhere."""
    tree = f"{site}/{'' if kind == 'model' else 'datasets/'}{repository}/tree/{revision or 'main'}"
    if kind == "model":
        folder = "models/" + repository.rsplit("/", 1)[-1]
        return ("elsewhere take config.json, generation_config.json, tokenizer.json, tokenizer_config.json, vocab.json, merges.txt and "
                f"all *.safetensors with model.safetensors.index.json, as far as there are such, from {tree} into {folder}/ here, and give "
                f"--model {folder}")
    option = "data.train" if kind == "train" else "data.eval"
    file = path if path.endswith(DATA_SUFFIXES) else f"the file of {SPLITS[kind][0]}" + (f" below {path}" if path else "")
    folder = "data/" + repository.rsplit("/", 1)[-1]
    return f"elsewhere take {file} from {tree} into {folder}/ here, and give --set {option}={folder}/FILE"


def fetched(kind, host, repository, path="", revision="", into=None):
    """Folder of a model or path of a data file, and the commit. kind: model, train or held_out. Errors: Refused."""
    hub = hub_of(host)
    folder = hub.stored(kind, repository, revision) if is_commit(revision) and not into else None
    if not has(folder, kind, path):
        try:
            commit, names = hub.listed(kind, repository, revision)
            files = chosen(names, kind, path)
            folder = hub.fetch(kind, repository, revision, files, into)
            return result(folder, files, kind), commit if into else os.path.basename(folder)
        except Unreachable as e:
            folder = None if into else hub.stored(kind, repository, revision)
            if not has(folder, kind, path):
                raise Refused(f"is not here yet, and {hub.site} cannot be reached ({e})",
                              by_hand(hub.site, kind, repository, path, revision)) from e
            print(f"{repository}: {hub.site} cannot be reached; what was fetched before serves", file=sys.stderr)
    return result(folder, chosen(names_below(folder), kind, path), kind), os.path.basename(folder)


def result(folder, files, kind):
    return folder if kind == "model" else os.path.join(folder, files[0])


def has(folder, kind, path):
    """Whether a folder holds the model or the data file whole; None holds nothing."""
    try:
        return folder is not None and is_whole(folder, chosen(names_below(folder), kind, path))
    except Refused:
        return False


def main():
    try:
        path, revision = fetched(*sys.argv[1:7])
        print(json.dumps({"path": path, "revision": revision}))
    except Refused as e:
        print(json.dumps({"what": e.what, "right": e.right}))


if __name__ == "__main__":
    main()
