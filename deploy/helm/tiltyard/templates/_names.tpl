{{/* One name for everything of a release. */}}
{{- define "tiltyard.name" -}}
{{- .Release.Name | trunc 30 | trimSuffix "-" -}}
{{- end }}

{{- define "tiltyard.labels" -}}
app.kubernetes.io/name: tiltyard
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{/* What selects the pods of one component: (dict "root" $ "component" "gateway"). */}}
{{- define "tiltyard.selector" -}}
app.kubernetes.io/name: tiltyard
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "tiltyard.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "tiltyard.secret" -}}
{{ .Values.existingSecret | default (include "tiltyard.name" .) }}
{{- end }}

{{/* Nothing that runs here needs a right. */}}
{{- define "tiltyard.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "tiltyard.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
