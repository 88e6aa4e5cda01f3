import json, os, sys, urllib.error, urllib.request

request = urllib.request.Request(
    os.environ["BASE"] + "/orders",
    headers={"Authorization": "Bearer " + os.environ["TOKEN"], "Content-Type": "application/json"},
    data=json.dumps({
        "currency": "CHF",
        "lines": [{"name": "Pizza Margherita", "quantity": 2, "unit_amount": 1650, "vat_rate": 260}],
        "return_url": os.environ["RETURN_URL"],
    }).encode(),
)
try:
    with urllib.request.urlopen(request, timeout=20) as answer:
        order = json.load(answer)
except urllib.error.HTTPError as refused:
    problem = json.load(refused)
    sys.exit(f'{problem["code"]}: {problem["detail"]}')
print(order["id"], order["state"], order["total"])
