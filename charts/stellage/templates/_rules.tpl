{{/*
What the processes may do, each rule with its reason and exactly the verbs that the code uses. With `mode: all` one service account
has both lists.
*/}}

{{- define "stellage.rules.api" -}}
# The facade creates, changes and deletes instances, private networks and webhooks for account holders. It never writes their status.
- apiGroups: ["stellage.dev"]
  resources: ["instances", "privatenetworks", "webhooks"]
  verbs: ["get", "list", "watch", "create", "patch", "delete"]
# The facade creates and deletes backups for account holders.
- apiGroups: ["stellage.dev"]
  resources: ["backups"]
  verbs: ["get", "list", "watch", "create", "delete"]
# The facade lists what is owed, creates test events, and asks for redelivery. Without a status subresource it could do more: the policy
# operator-deliveries.stellage.dev keeps it from writing a body or a status.
- apiGroups: ["stellage.dev"]
  resources: ["deliveries"]
  verbs: ["get", "list", "create", "patch"]
# The facade reads the log of events.
- apiGroups: ["stellage.dev"]
  resources: ["eventlogs"]
  verbs: ["get", "list"]
# The facade looks up which account a key belongs to.
- apiGroups: ["stellage.dev"]
  resources: ["accounts"]
  verbs: ["list", "watch"]
# The facade watches the digests of keys, revokes keys for account holders, and uses sign-in links of the console (a patch of
# metadata). It creates keys in accounts' namespaces only: see stellage-account.
- apiGroups: ["stellage.dev"]
  resources: ["apikeys"]
  verbs: ["get", "list", "watch", "patch", "delete"]
# The facade records on which day a key was last used.
- apiGroups: ["stellage.dev"]
  resources: ["apikeys/status"]
  verbs: ["patch"]
{{- end -}}

{{- define "stellage.rules.controller" -}}
# Administrators create accounts; the controller reads them and sets its finalizer (a patch of metadata).
- apiGroups: ["stellage.dev"]
  resources: ["accounts"]
  verbs: ["list", "watch", "patch"]
# The controller reads instances and sets its finalizer (a patch of metadata); it deletes those of a deleted account.
- apiGroups: ["stellage.dev"]
  resources: ["instances"]
  verbs: ["get", "list", "watch", "patch", "delete"]
# The controller reads private networks and sets its finalizer (a patch of metadata); it deletes those of a deleted account.
- apiGroups: ["stellage.dev"]
  resources: ["privatenetworks"]
  verbs: ["list", "watch", "patch", "delete"]
# The controller makes scheduled backups, deletes those that newer ones have replaced, and sets its finalizer (a patch of metadata).
- apiGroups: ["stellage.dev"]
  resources: ["backups"]
  verbs: ["list", "watch", "create", "patch", "delete"]
# The controller reads webhooks and writes which one each is (a patch of metadata); it deletes those of a deleted account.
- apiGroups: ["stellage.dev"]
  resources: ["webhooks"]
  verbs: ["get", "list", "watch", "patch", "delete"]
# The controller writes what it has observed. Backups, private networks and webhooks are only ever written whole.
- apiGroups: ["stellage.dev"]
  resources: ["accounts/status", "instances/status"]
  verbs: ["update", "patch"]
- apiGroups: ["stellage.dev"]
  resources: ["backups/status", "privatenetworks/status", "webhooks/status"]
  verbs: ["update"]
# The controller records what is owed and what was sent, and deletes old records.
- apiGroups: ["stellage.dev"]
  resources: ["deliveries"]
  verbs: ["get", "list", "watch", "create", "update", "delete"]
# The controller logs events in pages, which it never changes, and deletes old ones.
- apiGroups: ["stellage.dev"]
  resources: ["eventlogs"]
  verbs: ["get", "list", "create", "delete"]
# The controller takes invoice numbers, and notes on one that its invoice was deleted at the end of the retention. It cannot change or
# delete one: the admission policy operator-invoice-numbers.stellage.dev sees to that.
- apiGroups: ["stellage.dev"]
  resources: ["invoicenumbers"]
  verbs: ["get", "list", "create", "update"]
# The controller asks whether the Account of an open invoice is really gone.
- apiGroups: ["stellage.dev"]
  resources: ["accounts"]
  verbs: ["get"]
# The controller deletes the keys of a deleted account, and makes those that are to be written into a Secret.
- apiGroups: ["stellage.dev"]
  resources: ["apikeys"]
  verbs: ["get", "list", "watch", "delete"]
- apiGroups: ["stellage.dev"]
  resources: ["apikeys/status"]
  verbs: ["update"]
# The controller creates and labels the namespace of an account, and deletes it if it created it. RBAC cannot be limited by label; the
# admission policy operator-namespaces.stellage.dev keeps it to those, and away from kube-* and its own.
- apiGroups: [""]
  resources: ["namespaces"]
  verbs: ["get", "list", "watch", "create", "patch", "delete"]
# The ResourceQuota that makes an account's limits hold for kubectl as well, and the one that shows when Kubernetes can count all
# kinds.
- apiGroups: [""]
  resources: ["resourcequotas"]
  verbs: ["list", "watch"]
- apiGroups: [""]
  resources: ["resourcequotas"]
  resourceNames: ["stellage", "stellage-probe"]
  verbs: ["get", "create", "patch", "delete"]
# The RoleBindings that let the operator use Secrets in an account's namespace, and nowhere else; see also the admission policy
# operator-rolebindings.stellage.dev.
- apiGroups: ["rbac.authorization.k8s.io"]
  resources: ["rolebindings"]
  verbs: ["list", "watch"]
- apiGroups: ["rbac.authorization.k8s.io"]
  resources: ["rolebindings"]
  resourceNames: ["stellage-operator", "stellage-operator-api"]
  verbs: ["get", "create", "patch", "delete"]
# Whoever creates a RoleBinding must hold the rights in it or be allowed to bind the role: these and no other.
- apiGroups: ["rbac.authorization.k8s.io"]
  resources: ["clusterroles"]
  resourceNames: ["stellage-account", "stellage-account-api"]
  verbs: ["bind"]
# Events for `kubectl describe`. Repeated ones are not published, so none is ever patched.
- apiGroups: ["events.k8s.io"]
  resources: ["events"]
  verbs: ["create"]
{{- end -}}

{{- define "stellage.rules.both" -}}
# Receivers of webhooks must not have addresses of the cluster itself; these objects name them.
- apiGroups: ["networking.k8s.io"]
  resources: ["servicecidrs"]
  verbs: ["list"]
- apiGroups: [""]
  resources: ["nodes"]
  verbs: ["list"]
{{- end -}}

{{- define "stellage.rules.account.api" -}}
# A webhook's signing secret is in a Secret in the same namespace, which the facade creates, rotates, and shows once. The user data of an
# instance is in one that it only creates, and reads when that is asked for again. The admission policy operator-secrets.stellage.dev keeps it
# from writing others.
- apiGroups: [""]
  resources: ["secrets"]
  verbs: ["get", "create", "patch", "delete"]
# The facade creates keys for account holders (POST /v1/keys).
- apiGroups: ["stellage.dev"]
  resources: ["apikeys"]
  verbs: ["create"]
{{- end -}}

{{- define "stellage.rules.account.controller" -}}
# The controller signs with the secrets of webhooks and removes those that have expired. It reads the user data of a server that it installs. Those labelled for webhooks, which it lists by
# that label, go with their account. It creates those of API keys that it makes. The admission policy operator-secrets.stellage.dev keeps it
# from writing others.
- apiGroups: [""]
  resources: ["secrets"]
  verbs: ["get", "list", "create", "patch", "delete"]
{{- end -}}

{{- define "stellage.rules.lease" -}}
# Leader election uses this one Lease.
- apiGroups: ["coordination.k8s.io"]
  resources: ["leases"]
  resourceNames: ["stellage-controller"]
  verbs: ["get", "update"]
# A create cannot be limited to a name: the name is not known when it is authorized.
- apiGroups: ["coordination.k8s.io"]
  resources: ["leases"]
  verbs: ["create"]
{{- end -}}

{{- define "stellage.rules.invoices" -}}
# The controller opens, writes and issues the invoices of all accounts, which are in its own namespace.
- apiGroups: ["stellage.dev"]
  resources: ["invoices"]
  verbs: ["get", "list", "watch", "create", "update", "delete"]
- apiGroups: ["stellage.dev"]
  resources: ["invoicepages"]
  verbs: ["get", "list", "create", "update", "delete"]
# The controller keeps past and announced prices in this ConfigMap.
- apiGroups: [""]
  resources: ["configmaps"]
  resourceNames: ["stellage-prices"]
  verbs: ["get", "update"]
# A create cannot be limited to a name, which is not known when it is authorized; the admission policy operator-configmaps.stellage.dev
# does that.
- apiGroups: [""]
  resources: ["configmaps"]
  verbs: ["create"]
{{- end -}}

{{- define "stellage.rules.prices" -}}
# The facade reads invoices, and pages of their lines by name; it shows an account its own alone.
- apiGroups: ["stellage.dev"]
  resources: ["invoices"]
  verbs: ["get", "list"]
- apiGroups: ["stellage.dev"]
  resources: ["invoicepages"]
  verbs: ["get"]
# The facade reads the prices for the open invoice.
- apiGroups: [""]
  resources: ["configmaps"]
  resourceNames: ["stellage-prices"]
  verbs: ["get"]
{{- end -}}

{{- define "stellage.rules.console" -}}
# The console seals its cookies with a key that all replicas share, in the first of these Secrets, and the tickets of servers' consoles with
# that in the second.
- apiGroups: [""]
  resources: ["secrets"]
  resourceNames: ["stellage-console", "stellage-console-tickets"]
  verbs: ["get", "update"]
{{- end -}}

{{- define "stellage.rules.gateway" -}}
# The console gateway watches whether the servers of open consoles are still running, and their keys valid.
- apiGroups: ["stellage.dev"]
  resources: ["instances", "apikeys"]
  verbs: ["list", "watch"]
# It tells `kubectl describe` who has opened a console.
- apiGroups: ["events.k8s.io"]
  resources: ["events"]
  verbs: ["create"]
{{- end -}}

{{- define "stellage.rules.tickets" -}}
# The console gateway opens tickets with the key of the REST API.
- apiGroups: [""]
  resources: ["secrets"]
  resourceNames: ["stellage-console-tickets"]
  verbs: ["get"]
{{- end -}}

{{- define "stellage.rules.backupAge" -}}
# The controller shows the age of the last backup of the installation.
- apiGroups: [""]
  resources: ["configmaps"]
  resourceNames: ["stellage-backup"]
  verbs: ["get"]
{{- end -}}

{{- define "stellage.rules.backup" -}}
# A backup has all that accounts have, and their namespaces.
- apiGroups: ["stellage.dev"]
  resources: ["accounts", "apikeys", "backups", "deliveries", "eventlogs", "instances", "invoicenumbers", "privatenetworks", "webhooks"]
  verbs: ["list"]
- apiGroups: [""]
  resources: ["namespaces"]
  verbs: ["get", "list"]
# The Secrets of webhooks, instances and API keys, in lists of many. RBAC cannot be limited by label: whoever has this right can read all
# Secrets of the cluster.
- apiGroups: [""]
  resources: ["secrets"]
  verbs: ["list"]
{{- end -}}

{{- define "stellage.rules.backup.own" -}}
# The invoices of all accounts.
- apiGroups: ["stellage.dev"]
  resources: ["invoices", "invoicepages"]
  verbs: ["list"]
# What all replicas share: the key that seals sessions, and the prices.
- apiGroups: [""]
  resources: ["secrets"]
  resourceNames: ["stellage-console"]
  verbs: ["get"]
- apiGroups: [""]
  resources: ["configmaps"]
  resourceNames: ["stellage-prices"]
  verbs: ["get"]
# Whether an import is under way: what it has made so far is nothing to back up.
- apiGroups: ["coordination.k8s.io"]
  resources: ["leases"]
  resourceNames: ["stellage-controller"]
  verbs: ["get"]
# It notes the time of the last good backup.
- apiGroups: [""]
  resources: ["configmaps"]
  resourceNames: ["stellage-backup"]
  verbs: ["patch"]
{{- end -}}

{{/*
A role (a ClusterRole, or a Role if `.namespaced`) with `rules`, the names of templates, which is bound to `serviceAccount`, unless that
is empty.
*/}}
{{- define "stellage.role" -}}
{{- $kind := empty .namespaced | ternary "ClusterRole" "Role" }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata:
  name: {{ .name | quote }}
  {{- if .namespaced }}
  namespace: {{ .root.Release.Namespace | quote }}
  {{- end }}
  labels:
    {{- include "stellage.labels" .root | nindent 4 }}
    {{- with .labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
rules:
  {{- $root := .root }}
  {{- range .rules }}
  {{- include . $root | nindent 2 }}
  {{- end }}
{{- if .serviceAccount }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ .name | quote }}
  {{- if .namespaced }}
  namespace: {{ .root.Release.Namespace | quote }}
  {{- end }}
  labels:
    {{- include "stellage.labels" .root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ .name | quote }}
subjects:
  - kind: ServiceAccount
    name: {{ .serviceAccount | quote }}
    namespace: {{ .root.Release.Namespace | quote }}
{{- end }}
{{- end -}}

{{- define "stellage.rules.tenant.view" -}}
# What is in an account's namespace, but for its keys and Secrets.
- apiGroups: ["stellage.dev"]
  resources: ["instances", "privatenetworks", "backups", "webhooks", "deliveries", "eventlogs"]
  verbs: ["get", "list", "watch"]
{{- end -}}

{{- define "stellage.rules.tenant.edit" -}}
# No status, which the operator writes alone. What was delivered can only be read.
- apiGroups: ["stellage.dev"]
  resources: ["instances", "privatenetworks", "backups", "webhooks"]
  verbs: ["create", "update", "patch", "delete", "deletecollection"]
{{- end -}}

{{- define "stellage.rules.tenant.admin" -}}
# Keys for the REST API are rights that are passed on, so they are the business of whoever also binds roles.
- apiGroups: ["stellage.dev"]
  resources: ["apikeys"]
  verbs: ["get", "list", "watch", "create", "delete", "deletecollection"]
{{- end -}}
