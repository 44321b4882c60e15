#!/usr/bin/env bash
# Removes what an overlay has brought: bindings first, so that nothing stays pinned. It may be interrupted anywhere and run
# again as often as one likes: what has gone, kinds included, is passed over.
#   manifests/uninstall.sh [OVERLAY]      from the cluster that kubectl talks to
set -euo pipefail
overlay=${1:-manifests/overlays/default}
bindings=podcpubindings.concerto.dev

binding_kind() { kubectl get crd "$bindings" --ignore-not-found -o name; }

there=$(binding_kind)
if [ -n "$there" ] && ! kubectl delete "$bindings" --all --all-namespaces; then
  # an earlier run had got as far as the kind, which went with its bindings at this moment
  there=$(binding_kind)
  [ -z "$there" ]
fi

# An object whose kind is not served is gone, and kubectl would end with an error for it
objects=$(kubectl kustomize "$overlay")
# an aggregated API that does not answer is named, and none of ours
served=$(kubectl api-resources --no-headers | awk '{print $(NF-2), $NF}') || [ -n "$served" ]
# pick 0: all but kinds, with what is passed over; pick 1: kinds
pick() {
  printf '%s\n---\n%s\n---\n' "$served" "$objects" | awk -v kinds="$1" '
    $0 == "---" && !kinds_read { kinds_read = 1; next }
    !kinds_read { served[$0]; next }
    $0 == "---" {
      if ((kind == "CustomResourceDefinition") != kinds) ;
      else if ((version " " kind) in served) print text "---"
      else print "passed over, as the cluster has no such kind: " kind " " name > "/dev/stderr"
      text = version = kind = name = ""; next
    }
    $1 == "apiVersion:" && /^a/ { version = $2 }
    $1 == "kind:" && /^k/ { kind = $2 }
    $1 == "name:" && /^  n/ && name == "" { name = $2 }
    { text = text $0 "\n" }'
}
# A namespace that goes while kinds go is looked at again after ever longer times: kinds go when it has gone
left=$(pick 0)
if [ -n "$left" ]; then kubectl delete -f - --ignore-not-found <<<"$left"; fi
left=$(pick 1)
if [ -n "$left" ]; then kubectl delete -f - --ignore-not-found --wait=false <<<"$left"; fi
# no mapfile: macOS has bash 3.2
kinds=()
while read -r kind; do kinds+=("$kind"); done < <(awk '/^  name: / { print "crd/" $2 }' <<<"$left")
# Now and then the API server forgets a kind that is to go until it changes
for try in 1 2 3 4 5 6 7 8 9 10; do
  [ "${#kinds[@]}" -gt 0 ] || break
  if kubectl wait --for=delete --timeout=20s "${kinds[@]}" >/dev/null 2>&1; then break; fi
  [ "$try" -lt 10 ] || { echo "these kinds are not gone yet: ${kinds[*]}" >&2; exit 1; }
  kubectl annotate --overwrite "${kinds[@]}" "concerto.dev/removal=$try" >/dev/null 2>&1 || true
done
echo "nothing of $overlay is left"
