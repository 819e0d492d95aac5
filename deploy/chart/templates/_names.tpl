{{- define "quipu.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "quipu.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "quipu.labels" -}}
{{ include "quipu.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "quipu.account" -}}
{{ .Values.serviceAccount.name | default (include "quipu.name" .) }}
{{- end }}

{{- define "quipu.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}{{ else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "quipu.toml" -}}
listen = "0.0.0.0:7777"
# There is no encryption and no authentication yet: the network policy is what protects this port.
insecure = true
metrics_listen = "0.0.0.0:9777"
data_dir = "/data"
drain_timeout = "{{ .Values.drainSeconds }}s"
# The pod before this one may still hold the volume. Waiting is said in the log and in readiness.
lock_wait = "{{ sub .Values.startupSeconds 60 }}s"
{{- range $name, $value := .Values.config }}
{{ $name }} = {{ $value | toJson }}
{{- end }}
{{- end }}
