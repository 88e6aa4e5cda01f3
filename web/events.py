import json, os, sys, time, urllib.error, urllib.parse, urllib.request

ANSWER = "events.json"


def act(answer):
    for event in answer["data"]:  # an event may come twice: know it by its id
        print(event["id"], event["type"], flush=True)


def ask(after, wait):
    query = urllib.parse.urlencode({"after": after, "wait": wait})
    request = urllib.request.Request(f"{os.environ['BASE']}/events?{query}")
    request.add_header("Authorization", "Bearer " + os.environ["TOKEN"])
    with urllib.request.urlopen(request, timeout=20) as response:
        return json.load(response)


def keep(answer):
    with open(ANSWER + ".new", "w") as file:
        json.dump(answer, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(ANSWER + ".new", ANSWER)


answer = {"data": [], "next": "start", "more": True}
if os.path.exists(ANSWER):
    with open(ANSWER) as file:
        answer = json.load(file)
act(answer)  # what was kept, and perhaps not done, before the last stop
while True:
    try:
        answer = ask(answer["next"], 0 if answer["more"] else 15)
    except urllib.error.HTTPError as refused:
        if refused.code < 429:
            sys.exit(json.load(refused)["detail"])  # 410: read the lists, then begin with "next": "now"
        time.sleep(5)
    except OSError:  # no network
        time.sleep(5)
    else:
        keep(answer)  # before anything is done
        act(answer)
