{{- define "qsync.labels" -}}
app.kubernetes.io/name: qsync-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: qsync
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "qsync.selector" -}}
app.kubernetes.io/name: qsync-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "qsync.webSelector" -}}
app.kubernetes.io/name: qsync-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: web
{{- end }}

{{- define "qsync.webLabels" -}}
{{ include "qsync.webSelector" . }}
app.kubernetes.io/part-of: qsync
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* Permissions of the web page: it reads, and no Secrets. */}}
{{- define "qsync.webRules" -}}
- apiGroups: [qsync.dev]
  resources: [qsyncclusters]
  verbs: [get, list]
- apiGroups: [qsync.dev]
  resources: [qsyncaudits, qsyncjournals]
  verbs: [list]
- apiGroups: [""]
  resources: [pods, events]
  verbs: [list]
{{- end }}

{{- define "qsync.account" -}}
{{- .Values.serviceAccount.name | default .Release.Name -}}
{{- end }}

{{- define "qsync.image" -}}
{{- $image := .image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .version }}
{{- end -}}
{{- end }}

{{/* What the operator may do in a namespace that it looks after. No wildcard. */}}
{{- define "qsync.rules" -}}
- apiGroups: [qsync.dev]
  resources: [qsyncclusters]
  verbs: [get, list, watch]
- apiGroups: [qsync.dev]
  resources: [qsyncclusters/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [secrets, serviceaccounts]
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [list, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors, prometheusrules]
  verbs: [get, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [qsync.dev]
  resources: [qsyncaudits, qsynccompactions]
  verbs: [list, watch, create, delete]
- apiGroups: [qsync.dev]
  resources: [qsyncjournals]
  verbs: [list, watch]
- apiGroups: [qsync.dev]
  resources: [qsyncaudits/status, qsynccompactions/status, qsyncjournals/status]
  verbs: [patch]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch]
- apiGroups: [batch]
  resources: [cronjobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [rolebindings]
  verbs: [get, create, patch]
{{- end }}
