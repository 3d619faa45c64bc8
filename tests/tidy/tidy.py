"""Style rules that a machine can check. Usage: tidy.py RULE [BUILD_DIR]; prints each breach and exits 1."""

import os
import platform
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCE_ENDINGS = (".h", ".cc")
MAX_COLUMNS = 110
MAX_FUNCTION_LINES = 75
MAX_FILE_LINES = 620
# Longer than the rule when the rule came; may only shrink.
LONGER_FUNCTIONS = {}
LONGER_FILES = {}


def sources(*folders):
    for folder in folders:
        for path, _, names in os.walk(os.path.join(ROOT, folder)):
            if "/target" in path:
                continue
            for name in sorted(names):
                if name.endswith(SOURCE_ENDINGS):
                    yield os.path.relpath(os.path.join(path, name), ROOT)


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def room_of(path):
    return path.split(os.sep)[1]


def check_rooms(_):
    """Includes go only to rooms that the table lists; public headers include only themselves."""
    allowed = {}
    for line in read("tests/tidy/rooms.txt").splitlines():
        if line and not line.startswith("#"):
            room, below = line.split(":")
            allowed[room] = set(below.split())
    rooms = set(os.listdir(os.path.join(ROOT, "src"))) - {"CMakeLists.txt"}
    for room in rooms - set(allowed):
        yield f"src/{room} is not in tests/tidy/rooms.txt"
    for path in sources("src", "include"):
        is_test = path.endswith("_test.cc") or "/testing/" in path
        for target in re.findall(r'^#include "([^"]+)"', read(path), re.M):
            there = "api" if target.startswith("ganglion/") else target.split("/")[0]
            if path.startswith("include"):
                if there != "api":
                    yield f"{path}: a public header includes {target}"
            elif "/" not in target and room_of(path) in ("chat",):
                continue
            elif there != room_of(path) and there not in allowed[room_of(path)] and not (is_test and there in rooms | {"api"}):
                yield f"{path}: room {room_of(path)} may not include {target}"


def check_headers(_):
    """Every header compiles alone; those of another machine's kernels by a cross compiler, where there is one."""
    native = os.environ.get("CXX", "c++")

    def compiler_for(path):
        folder = re.search("/kernels/(x86|arm)_", path)
        machine = {"x86": "x86_64", "arm": "aarch64"}[folder[1]] if folder else platform.machine()
        return native if machine == platform.machine() else shutil.which(f"{machine}-linux-gnu-g++")

    def compile_one(path):
        compiler = compiler_for(path)
        if not compiler:
            return None
        done = subprocess.run(
            [compiler, "-std=c++20", "-fsyntax-only", "-x", "c++", "-Wall", "-Wextra", "-Wno-pragma-once-outside-header",
             f"-I{ROOT}/src", f"-I{ROOT}/include", os.path.join(ROOT, path)],
            capture_output=True, text=True, check=False)
        return f"{path}: {done.stderr.strip().splitlines()[0]}" if done.returncode else None

    headers = [path for path in sources("src", "include") if path.endswith(".h")]
    with ThreadPoolExecutor(2) as pool:
        yield from filter(None, pool.map(compile_one, headers))


def check_kernel_objects(build):
    """An object of a kernel folder exports one symbol and no weak one: code for one instruction set must not be
    chosen by the linker for all."""
    objects = []
    for path, _, names in os.walk(os.path.join(build, "src/kernels")):
        objects += [os.path.join(path, name) for name in names
                    if name.endswith(".o") and os.path.basename(path) not in ("ganglion_kernels.dir",)
                    and "_test.dir" not in path]
    if not objects:
        yield f"no kernel objects under {build}"
    for path in objects:
        symbols = subprocess.run(["nm", "-C", "--defined-only", path], capture_output=True, text=True, check=True).stdout
        kinds = [line.split()[1] for line in symbols.splitlines() if len(line.split()) > 2]
        strong = sum(kind in "TDBR" for kind in kinds)
        weak = sum(kind in "WVu" for kind in kinds)
        if strong != 1 or weak:
            yield f"{os.path.relpath(path, build)} exports {strong} symbols and {weak} weak ones"


def check_columns(_):
    for path in sources("src", "include"):
        for number, line in enumerate(read(path).splitlines(), 1):
            if len(line) > MAX_COLUMNS:
                yield f"{path}:{number}: {len(line)} columns, at most {MAX_COLUMNS}"
            if line != line.rstrip() or "\t" in line:
                yield f"{path}:{number}: trailing space or tab"


def check_lengths(_):
    """Functions of about 70 lines, files of about 600."""
    for path in sources("src", "include"):
        if path.endswith("_test.cc") or "/testing/" in path:
            continue
        lines = read(path).splitlines()
        if len(lines) > LONGER_FILES.get(path, MAX_FILE_LINES):
            yield f"{path}: {len(lines)} lines"
        start = None
        for number, line in enumerate(lines, 1):
            if re.match(r"^(  )?[A-Za-z_].*\) ?(const|noexcept|override|final| )*(: .*)?\{$", line) and \
                    not line.startswith(("namespace", "class", "struct", "enum")):
                start = (number, line.strip(), len(line) - len(line.lstrip()))
            elif start and re.match(r"^( *)\}", line) and len(line) - len(line.lstrip()) == start[2]:
                length = number - start[0] + 1
                if length > LONGER_FUNCTIONS.get(f"{path}:{start[1]}", MAX_FUNCTION_LINES):
                    yield f"{path}:{start[0]}: a function of {length} lines"
                start = None


def check_format(_):
    """clang-format agrees with every file."""
    names = list(sources("src", "include", "tools", "bench", "fuzz", "tests/e2e"))
    done = subprocess.run(["clang-format", "--dry-run", *names], cwd=ROOT, capture_output=True, text=True, check=False)
    files = sorted({line.split(":")[0] for line in done.stderr.splitlines() if "warning:" in line or "error:" in line})
    yield from (f"{name}: not as clang-format would have it" for name in files)


BANNED = [
    (r"\bassert\(", "use GANGLION_CHECK", ()),
    (r"\bstd::(cout|cerr)\b", "libraries do not print", ("src/cli/",)),
    (r"(?<!sn)(?<!vsn)\bprintf\(", "libraries do not print", ("src/cli/", "_test.cc", "src/base/")),
    (r"\bexit\(", "libraries do not exit", ("src/cli/", "_test.cc")),
    (r"\bgetenv\(", "options come from the caller", ("_test.cc", "src/cli/")),
    (r"\bthrow\b", "errors are values", ("_test.cc", "src/cli/")),
    (r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))", "a TODO names an issue: TODO(#12)", ()),
    (r"using namespace std", "names stay qualified", ()),
    (r"ffast-math", "arithmetic is exact", ()),
]


def check_tokens(_):
    for path in sources("src", "include"):
        for number, line in enumerate(read(path).splitlines(), 1):
            code = line.split("//")[0] if "TODO" not in line else line
            for pattern, why, but_in in BANNED:
                if any(part in path for part in but_in):
                    continue
                if re.search(pattern, code):
                    yield f"{path}:{number}: {line.strip()} - {why}"


def check_repository(_):
    """Nothing of the machine it was written on; fixtures small enough to clone."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split("\n")
    total = 0
    for name in filter(None, names):
        path = os.path.join(ROOT, name)
        if not os.path.isfile(path):
            continue
        if name.startswith("tests/fixtures/"):
            total += os.path.getsize(path)
            continue
        with open(path, "rb") as file:
            text = file.read()
        if name != "tests/tidy/tidy.py" and re.search(rb"/(work|root|home)/", text):
            yield f"{name}: a path of one machine"
    if total > 30_000_000:
        yield f"tests/fixtures holds {total} bytes, at most 30 MB"


if __name__ == "__main__":
    RULES = {name[6:]: value for name, value in globals().items() if name.startswith("check_")}
    breaches = list(RULES[sys.argv[1]](sys.argv[2] if len(sys.argv) > 2 else ""))
    print("\n".join(breaches) if breaches else f"{sys.argv[1]}: fine")
    sys.exit(1 if breaches else 0)
