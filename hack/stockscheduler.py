# SPDX-License-Identifier: Apache-2.0
"""The objects of hack/stockscheduler, and what became of them."""
import collections
import json
import os
import re
import sys

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
NODES = 12  # n01 to n12; n12 has a taint, "server" is cordoned


GROUPS = "GenericWorkload=true" in os.environ.get("GATES", "")  # whether the servers have pod groups


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
    group = lambda name: {"schedulingGroup": {"podGroupName": name}}
    devices = {"resourceClaims": [{"name": "d", "resourceClaimTemplateName": "gpu"}], "resources": {"claims": [{"name": "d"}]}}
    volume = lambda claim: {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}
    red = {"tolerations": [{"key": "team", "operator": "Equal", "value": "red", "effect": "NoSchedule"}]}
    gangs = {
        "gang": ("kinds", 3, group("gang"), False),
        "big-gang": ("kinds", 3, dict(host("n10"), **group("big-gang"), **asks(cpu="12")), False),
        "basic": ("kinds", 3, dict(host("n11"), **group("basic"), **asks(cpu="12")), True),
    } if GROUPS else {}
    return gangs | {
        "guarded": ("fill", 1, dict(host("n06"), priorityClassName="low", **asks(cpu="15")), True),
        "unguarded": ("fill", 1, dict(host("n06"), priorityClassName="low", **asks(cpu="15")), True),
        "over": ("kinds", 1, dict(host("n06"), priorityClassName="high", **asks(cpu="16")), True),
        "claim": ("kinds", 3, devices, True),
        "provisioned": ("kinds", 1, dict(host("n09"), **volume("later")), True),
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
        "late": ("late", 300, asks(cpu="10m"), False),
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
    yield {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "made"}, "provisioner": "example.com/disk", "volumeBindingMode": "WaitForFirstConsumer"}
    yield {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "later", "namespace": "default"},
           "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "made", "resources": {"requests": {"storage": "1Gi"}}}}
    yield {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "guarded", "namespace": "default"},
           "spec": {"minAvailable": 1, "selector": {"matchLabels": {"kind": "guarded"}}}}
    yield {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]}}
    yield {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "n08-gpus"}, "spec": {
        "driver": "gpu.example.com", "nodeName": "n08", "pool": {"name": "n08", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "g0"}, {"name": "g1"}]}}
    yield {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "gpu", "namespace": "default"},
           "spec": {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}}}
    for name, policy in (("gang", {"gang": {"minCount": 3}}), ("big-gang", {"gang": {"minCount": 3}}), ("basic", {"basic": {}})):
        if GROUPS:
            yield {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": name, "namespace": "default"}, "spec": {"schedulingPolicy": policy}}
    for name, size, mode in (("local", "1Gi", "ReadWriteOnce"), ("none", "5Gi", "ReadWriteOnce"), ("one-pod", "1Gi", "ReadWriteOncePod")):
        yield {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "default"},
               "spec": {"accessModes": [mode], "storageClassName": "here", "resources": {"requests": {"storage": size}}}}


def provision(claims):
    """The volumes that a provisioner makes for claims whose nodes the scheduler has chosen."""
    for c in claims:
        node = c["metadata"].get("annotations", {}).get("volume.kubernetes.io/selected-node")
        if node and not c["spec"].get("volumeName"):
            yield {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "made-" + c["metadata"]["name"]}, "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "made", "local": {"path": "/mnt"},
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": c["metadata"]["name"], "uid": c["metadata"]["uid"]},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": HOST, "operator": "In", "values": [node]}]}]}}}}


def amount(text):
    units = {"m": 1e-3, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
    unit = next((u for u in units if text.endswith(u)), "")
    return float(text[: len(text) - len(unit)]) * units.get(unit, 1)


def placed(nodes, pods, events):
    """Says what is wrong with where pods are: too much on a node, a host port or a device twice, or a pod that got two nodes."""
    wrong = []
    room = {n["metadata"]["name"]: n["status"]["allocatable"] for n in nodes}
    used, ports = collections.Counter(), collections.Counter()
    for p in pods:
        node = p["spec"].get("nodeName")
        if not node:
            continue
        used[node, "pods"] += 1
        for c in p["spec"]["containers"]:
            for name, q in c["resources"].get("requests", {}).items():
                used[node, name] += amount(q)
            ports.update((node, x["hostPort"]) for x in c.get("ports", []))
    wrong += [f"{n} has {u} of {name}" for (n, name), u in used.items() if u > amount(room[n].get(name, "0")) + 1e-6]
    wrong += [f"host port {port} of {n} is used {k} times" for (n, port), k in ports.items() if k > 1]
    where = {p["metadata"]["uid"]: p["spec"].get("nodeName") for p in pods}
    bindings = collections.Counter()
    for e in events:
        uid = e["involvedObject"].get("uid")
        if e["reason"] == "Scheduled" and uid in where:
            bindings[uid] += e.get("count") or 1
            if not e["message"].endswith(f"to {where[uid]}"):
                wrong.append(f"{e['involvedObject']['name']} is on {where[uid]}, and was told: {e['message']}")
    wrong += [f"{n} bindings of a pod with UID {uid}" for uid, n in bindings.items() if n > 1]
    return wrong


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


def told(events, kind):
    """The events about a kind's pods, without their notes, which tell of one moment."""
    mine = {f"{e['type']} {e['reason']} {e.get('action', '-')} {e.get('reportingComponent') or e['source'].get('component')}" for e in events
            if e["involvedObject"]["kind"] in ("Pod", "PodGroup") and re.fullmatch(kind + r"(-\d+)?", e["involvedObject"]["name"]) and e["reason"] in ("Scheduled", "FailedScheduling", "Preempted", "SchedulerError", "FailedBinding", "FailedCreate")}
    return ", ".join(sorted(mine))


def table(files):
    runs, events, groups = {}, {}, {}
    for f in files:
        run = f.split("/")[-1][:-5].replace("-", "/")
        runs[run], events[run] = (json.load(open(f))["items"] for f in (f, f[:-5] + ".events"))
        groups[run] = {g["metadata"]["name"]: g for g in json.load(open(f[:-5] + ".groups"))["items"]} if GROUPS else {}
    differ = 0
    for kind, (_, count, _, always) in kinds().items():
        said = {}
        for run, all in runs.items():
            # kube-scheduler's informer may not know that a group is scheduled when its last pod is refused: its condition then turns False
            of = [f"{c['type']} {c['status']} {c['reason']}: {c['message']}; " for c in groups[run].get(kind, {}).get("status", {}).get("conditions", []) if kind != "basic"]
            said.setdefault(f"{''.join(of)}{outcome(all, kind, always)} [{told(events[run], kind)}]", []).append(run)
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
    case "provision":
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(provision(json.load(sys.stdin)["items"]))}))
    case "placed":
        sys.exit("\n".join(placed(*(json.load(open(f))["items"] for f in sys.argv[2:]))) or None)
    case "table":
        table(sys.argv[2:])
    case wave:
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(pods(wave))}))
