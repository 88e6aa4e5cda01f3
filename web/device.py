import base64, json, os, secrets, subprocess, sys, urllib.request

env = os.environ


def check(token):
    """What the check of a lease says, and whether the lease holds."""
    run = subprocess.run([sys.executable, "lease.py"], env={**env, "TOKEN": token}, capture_output=True, text=True)
    return run.stdout.strip(), run.returncode == 0


def claims(token):
    part = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))


def read(name):
    with open(name) as f:
        return f.read()


def save(name, text):
    with open(name + ".new", "w") as f:
        f.write(text)
    os.replace(name + ".new", name)


def refuse(why):
    print(why)
    sys.exit(1)


def post(call):
    """The answer of the service; {} when there was none."""
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + read("lease.jwt")}
    request = urllib.request.Request(env["AUDIENCE"] + "/widget/license/" + call, b"{}", headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return {}


def request():  # Somebody carries this to the page /activate …
    nonce = secrets.token_hex(16)
    save("lease.nonce", nonce)
    return json.dumps({"license_key": env["LICENSE_KEY"], "fingerprint": env["FINGERPRINT"],
                       "product": env["PRODUCT"], "nonce": nonce, "offline": True})


def take():  # … and brings the lease back, which is read here.
    token = "".join(sys.stdin.read().split())
    said, holds = check(token)
    if not holds:
        refuse(said)
    if claims(token).get("nonce") != read("lease.nonce"):
        refuse("it answers another request")
    if claims(token)["prd"] != env["PRODUCT"]:
        refuse("it is for another product")
    save("lease.jwt", token)
    return "activated"


def start():  # Each time that the application starts, and once a minute while it runs.
    said, holds = check(read("lease.jwt"))
    return said if holds else refuse(said)


def online():  # Whenever there is a network. Only an answer with valid changes anything.
    answer = post("verify")
    if "valid" not in answer:
        return "not known now"
    if not answer["valid"]:
        os.remove("lease.jwt")
        return answer["code"]
    token = answer.get("token")
    # An offline lease lasts longer than those that follow it, so the one that ends last is kept.
    if token and claims(token)["exp"] > claims(read("lease.jwt"))["exp"] and check(token)[1]:
        save("lease.jwt", token)
    return "valid"


def leave():  # Gives the seat back, which an offline lease keeps until it ends.
    answer = post("deactivate")
    if not answer.get("released"):
        return "kept until " + answer["until"] if "until" in answer else "not released"
    os.remove("lease.jwt")
    return "released"


print({"request": request, "take": take, "start": start, "online": online, "leave": leave}[sys.argv[1]]())
