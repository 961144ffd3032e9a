# SPDX-License-Identifier: Apache-2.0
"""The objects of hack/stockscheduler, and what became of them."""
import json
import re
import sys

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
NODES = 12  # n01 to n12; n12 has a taint, "server" is cordoned


def kinds():
    """KIND -> (wave, count, spec, whether the nodes are always the same). What is bound depends on no tie."""
    app = lambda a: {"labelSelector": {"matchLabels": {"kind": a}}}
    near = lambda a, key: {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [dict(app(a), topologyKey=key)]}}}
    away = lambda a, key: {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [dict(app(a), topologyKey=key)]}}}
    nodes = lambda **t: {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [t]}}}}
    spread = lambda a, key, **more: {"topologySpreadConstraints": [dict(app(a), topologyKey=key, whenUnsatisfiable="DoNotSchedule", maxSkew=1, **more)]}
    on = lambda **labels: {"nodeSelector": {k.replace("_", "/"): v for k, v in labels.items()}}
    host = lambda n: {"nodeSelector": {HOST: n}}
    asks = lambda **r: {"resources": {"requests": {k: v for k, v in r.items()}}}
    volume = lambda claim: {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}
    red = {"tolerations": [{"key": "team", "operator": "Equal", "value": "red", "effect": "NoSchedule"}]}
    return {
        "low": ("fill", 2, dict(on(full="yes"), priorityClassName="low", **asks(cpu="15")), True),
        "holder": ("fill", 1, dict(host("n01"), ports=[8080]), True),
        "plain": ("kinds", 20, asks(cpu="100m", memory="500Mi"), False),
        "huge": ("kinds", 1, asks(cpu="64"), False),
        "device": ("kinds", 1, asks(**{"example.com/gpu": "1"}), False),
        "selected": ("kinds", 3, on(disk="ssd"), True),
        "nowhere": ("kinds", 1, on(disk="tape"), False),
        "not-in": ("kinds", 2, nodes(matchExpressions=[{"key": ZONE, "operator": "NotIn", "values": ["a", "b"]}, {"key": ZONE, "operator": "Exists"}, {"key": HOST, "operator": "In", "values": ["n03"]}]), True),
        "by-field": ("kinds", 1, nodes(matchFields=[{"key": "metadata.name", "operator": "In", "values": ["n07"]}]), True),
        "tolerates": ("kinds", 1, dict(host("n12"), **red), True),
        "tainted": ("kinds", 1, host("n12"), False),
        "port": ("kinds", 14, {"ports": [8080]}, False),
        "apart": ("kinds", 14, away("apart", HOST), False),
        "together": ("kinds", 4, near("together", ZONE), False),
        "lonely": ("kinds", 2, near("friend", HOST), True),
        "spread": ("kinds", 9, spread("spread", ZONE), False),
        "few-domains": ("kinds", 5, spread("few-domains", ZONE, minDomains=5), False),
        "spread-hosts": ("kinds", 14, spread("spread-hosts", HOST), False),
        "spread-tainted": ("kinds", 14, spread("spread-tainted", HOST, nodeTaintsPolicy="Honor"), False),
        "gated": ("kinds", 2, {"schedulingGates": [{"name": "example.com/wait"}]}, False),
        "volume": ("kinds", 1, volume("local"), True),
        "no-volume": ("kinds", 1, volume("none"), False),
        "no-claim": ("kinds", 1, volume("missing"), False),
        "one-pod": ("kinds", 2, volume("one-pod"), False),
        "high": ("kinds", 1, dict(on(full="yes"), priorityClassName="high", **asks(cpu="16")), True),
        "polite": ("kinds", 1, dict(on(full="yes"), priorityClassName="polite", **asks(cpu="16")), False),
        "foreign": ("kinds", 1, {"schedulerName": "foreign"}, False),
        "direct": ("kinds", 1, {"nodeName": "n01"}, True),
        "later": ("kinds", 1, on(late="yes"), True),
        "friend": ("late", 1, host("n09"), True),
        "late": ("late", 30, asks(cpu="100m"), False),
    }


def pods(wave):
    for kind, (when, count, spec, _) in kinds().items():
        if when != wave:
            continue
        spec = dict(spec)
        c = {"name": "c", "image": "example.com/nothing", "resources": spec.pop("resources", {})}
        c["ports"] = [{"containerPort": p, "hostPort": p} for p in spec.pop("ports", [])]
        if "requests" in c["resources"] and "example.com/gpu" in c["resources"]["requests"]:
            c["resources"]["limits"] = c["resources"]["requests"]
        for i in range(count):
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{kind}-{i}", "namespace": "default", "labels": {"kind": kind}},
                   "spec": dict(spec, containers=[c], terminationGracePeriodSeconds=1)}


def objects():
    for name, value, policy in (("low", 1, "PreemptLowerPriority"), ("high", 1000, "PreemptLowerPriority"), ("polite", 900, "Never")):
        yield {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value, "preemptionPolicy": policy}
    yield {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "here"}, "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    for name, node, mode in (("pv-1", "n03", "ReadWriteOnce"), ("pv-2", "n04", "ReadWriteOncePod")):
        yield {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": [mode], "storageClassName": "here", "local": {"path": "/mnt"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": HOST, "operator": "In", "values": [node]}]}]}}}}
    for name, size, mode in (("local", "1Gi", "ReadWriteOnce"), ("none", "5Gi", "ReadWriteOnce"), ("one-pod", "1Gi", "ReadWriteOncePod")):
        yield {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "default"},
               "spec": {"accessModes": [mode], "storageClassName": "here", "resources": {"requests": {"storage": size}}}}


def scheduled(p):
    return next((c for c in p["status"].get("conditions", []) if c["type"] == "PodScheduled"), {})


def settled(all, must):
    for p in all:
        name = p["metadata"]["name"]
        if p["spec"].get("schedulerName") == "foreign" or p["spec"].get("nodeName") and "deletionTimestamp" not in p["metadata"]:
            continue
        if name in must or "deletionTimestamp" in p["metadata"] or p["status"].get("nominatedNodeName") or scheduled(p).get("status") != "False":
            sys.exit(f"{name} has not settled")


def outcome(all, kind, always):
    """What became of a kind, in words."""
    mine = [p for p in all if p["metadata"]["labels"]["kind"] == kind]
    bound = sorted(p["spec"]["nodeName"] for p in mine if p["spec"].get("nodeName"))
    words = [f"{len(bound)} bound" + (" on " + " ".join(sorted(set(bound))) if always and bound else "")] if bound else []
    if bound and not always and kind in ("together", "spread", "few-domains"):
        zones = ["abc"[(int(n[1:]) - 1) % 3] for n in bound]
        words[0] += " in zones of " + ", ".join(sorted(str(zones.count(z)) for z in set(zones)))
    why = {}
    for p in mine:
        if not p["spec"].get("nodeName"):
            c = scheduled(p)
            m = re.split(r"\.? (?:no new claims|preemption:)|\. not found", c.get("message", ""))[0].rstrip(". ")
            m = (c.get("reason", "untouched") + " " + m).strip()
            why[m] = why.get(m, 0) + 1
    return "; ".join(words + [f"{n} {m}" for m, n in sorted(why.items())]) or "gone"


def table(files):
    runs = {f.split("/")[-1][:-5].replace("-", "/"): json.load(open(f))["items"] for f in files}
    differ = 0
    for kind, (_, count, _, always) in kinds().items():
        said = {}
        for run, all in runs.items():
            said.setdefault(outcome(all, kind, always), []).append(run)
        differ += len(said) > 1
        for words, who in said.items():
            print(f"{kind:<15}{count:>3}  {'all' if len(said) == 1 else ' '.join(who):<12} {words}")
    print(f"{len(kinds())} kinds under {', '.join(runs)} (server/scheduler): " + (f"{differ} DIFFER" if differ else "the same"))
    sys.exit(differ > 0)


match sys.argv[1]:
    case "objects":
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects())}))
    case "settled":
        settled(json.load(sys.stdin)["items"], sys.argv[2:])
    case "table":
        table(sys.argv[2:])
    case wave:
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(pods(wave))}))
