# SPDX-License-Identifier: Apache-2.0
"""Shared helpers: repeat a timed callable, report min/median/max, machine facts."""
import json, os, platform, statistics, time


def mmm(xs, nd=3):
    xs = [float(x) for x in xs]
    r = lambda v: float(f"{v:.{nd + 2}g}") if v else 0.0
    return {"min": r(min(xs)), "median": r(statistics.median(xs)), "max": r(max(xs)), "n": len(xs)}


def timeit(fn, repeats=5, warmup=1, min_time=0.0, inner=None):
    """Seconds per call for each repeat; a repeat lasts at least min_time."""
    for _ in range(warmup):
        fn()
    if inner is None:
        t = time.perf_counter(); fn(); dt = time.perf_counter() - t
        inner = max(1, int(min_time / max(dt, 1e-9)))
    out = []
    for _ in range(repeats):
        t = time.perf_counter()
        for _ in range(inner):
            fn()
        out.append((time.perf_counter() - t) / inner)
    return out


def machine():
    cpu = ""
    flags = set()
    try:
        for line in open("/proc/cpuinfo"):
            if line.startswith("model name") and not cpu:
                cpu = line.split(":", 1)[1].strip()
            if line.startswith("flags") and not flags:
                flags = {f for f in line.split(":", 1)[1].split() if f.startswith(("avx512", "amx"))}
    except OSError:
        pass
    return {"cpu": cpu, "cores": os.cpu_count(), "isa": sorted(flags),
            "loadavg_1m": round(os.getloadavg()[0], 2), "python": platform.python_version(),
            "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}


def versions(*names):
    from importlib.metadata import version, PackageNotFoundError
    out = {}
    for n in names:
        try:
            out[n] = version(n)
        except PackageNotFoundError:
            out[n] = None
    return out


def emit(d, path=None):
    s = json.dumps(d, indent=1)
    print(s, flush=True)
    if path:
        with open(path, "w") as f:
            f.write(s + "\n")
