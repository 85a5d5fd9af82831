{{/* Name that all objects begin with. */}}
{{- define "tandemq.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 30 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 30 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 30 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Name of a group's objects. Argument: dict root, group. Pods have further characters behind it. */}}
{{- define "tandemq.groupName" -}}
{{- $name := printf "%s-%s" (include "tandemq.fullname" .root) .group.name -}}
{{- if gt (len $name) 52 -}}
{{- fail (printf "groups: %s is longer than 52 characters: shorten the group's name, or set fullnameOverride" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* Labels that select pods. Argument: dict root, component, and perhaps group. */}}
{{- define "tandemq.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .group }}
tandemq/group: {{ .name }}
{{- end }}
{{- end -}}

{{/* Labels of an object. Arguments as above. */}}
{{- define "tandemq.labels" -}}
{{ include "tandemq.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of pods: none that changes with the chart's version, since pods would be replaced. */}}
{{- define "tandemq.podLabels" -}}
{{ include "tandemq.selector" . }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "tandemq.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ printf "%s@%s" .repository .digest }}
{{- else -}}
{{ printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tandemq.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "tandemq.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{/* Whether a name server hosts the registry: "true" or "". */}}
{{- define "tandemq.hostsRegistry" -}}
{{- if and .Values.registry.zookeeper.address .Values.registry.etcd.address -}}
{{- fail "registry: give the address of ZooKeeper or of etcd, not both" -}}
{{- end -}}
{{- if not (or .Values.registry.zookeeper.address .Values.registry.etcd.address) }}true{{ end -}}
{{- end -}}

{{/* Domain of a headless service. Argument: dict root, service. */}}
{{- define "tandemq.domain" -}}
{{ .service }}.{{ .root.Release.Namespace }}.svc.{{ .root.Values.clusterDomain }}
{{- end -}}

{{/* Addresses of the name servers, separated by semicolons. */}}
{{- define "tandemq.nameServers" -}}
{{- $full := include "tandemq.fullname" . -}}
{{- $found := list -}}
{{- if include "tandemq.hostsRegistry" . -}}
{{- $service := printf "%s-registry" $full -}}
{{- $domain := include "tandemq.domain" (dict "root" . "service" $service) -}}
{{- $found = append $found (printf "%s-0.%s:9876" $service $domain) -}}
{{- end -}}
{{- $service := printf "%s-namesrv" $full -}}
{{- $domain := include "tandemq.domain" (dict "root" . "service" $service) -}}
{{- range $number := until (int .Values.nameServer.replicas) -}}
{{- $found = append $found (printf "%s-%d.%s:9876" $service $number $domain) -}}
{{- end -}}
{{- if not $found -}}
{{- fail "nameServer.replicas: with ZooKeeper or etcd at least 1 is needed" -}}
{{- end -}}
{{- join ";" $found -}}
{{- end -}}

{{/* Address of the registry. */}}
{{- define "tandemq.registry" -}}
{{- if include "tandemq.hostsRegistry" . -}}
{{- $service := printf "%s-registry" (include "tandemq.fullname" .) -}}
namesrv://{{ $service }}-0.{{ include "tandemq.domain" (dict "root" . "service" $service) }}:9876
{{- else if .Values.registry.etcd.address -}}
etcd://{{ .Values.registry.etcd.address }}
{{- else -}}
zookeeper://{{ .Values.registry.zookeeper.address }}
{{- end -}}
{{- end -}}

{{- define "tandemq.replicationSecret" -}}
{{ .Values.replicationSecret.existingSecret | default (printf "%s-replication" (include "tandemq.fullname" .)) }}
{{- end -}}

{{- define "tandemq.userSecret" -}}
{{ .Values.auth.existingSecret | default (printf "%s-admin" (include "tandemq.fullname" .)) }}
{{- end -}}

{{- define "tandemq.consoleSecret" -}}
{{ .Values.console.tls.existingSecret | default (printf "%s-console-tls" (include "tandemq.fullname" .)) }}
{{- end -}}

{{/* Lines of a configuration file. Argument: a list of dicts; the last one that has a key decides. */}}
{{- define "tandemq.properties" -}}
{{- $all := dict -}}
{{- range . -}}
{{- range $key, $value := . -}}
{{- $_ := set $all $key $value -}}
{{- end -}}
{{- end -}}
{{- range $key, $value := $all }}
{{- /* Helm reads whole numbers as floats, and would print large ones with an exponent. */}}
{{- $isWhole := and (kindIs "float64" $value) (eq (printf "%v" (floor $value)) (printf "%v" $value)) }}
{{ $key }}={{ ternary (int64 $value) $value $isWhole }}
{{- end }}
{{- end -}}

{{/* Settings of all servers, as JSON. */}}
{{- define "tandemq.common" -}}
{{- $common := dict
      "bindAddress" .Values.bindAddress
      "metricsBindAddress" .Values.bindAddress
      "haSecretFile" "/run/tandemq/replication/replication.secret" -}}
{{- if .Values.tls.existingSecret -}}
{{- $_ := set $common "tls.server.mode" .Values.tls.mode -}}
{{- $_ := set $common "tls.server.certPath" "/run/tandemq/tls/tls.crt" -}}
{{- $_ := set $common "tls.server.keyPath" "/run/tandemq/tls/tls.key" -}}
{{- $_ := set $common "tls.enable" "true" -}}
{{- $_ := set $common "tls.client.authServer" "true" -}}
{{- $_ := set $common "tls.client.checkHost" (toString .Values.tls.checkHost) -}}
{{- $_ := set $common "tls.client.trustCertPath" "/run/tandemq/tls/ca.crt" -}}
{{- end -}}
{{- toJson $common -}}
{{- end -}}

{{/* Environment of the commands, in servers too, for `kubectl exec`. */}}
{{- define "tandemq.environment" -}}
- name: TANDEMQ_NAMESRV
  value: {{ include "tandemq.nameServers" . | quote }}
- name: TANDEMQ_REGISTRY
  value: {{ include "tandemq.registry" . | quote }}
- name: TANDEMQ_SECRET_FILE
  value: /run/tandemq/replication/replication.secret
{{- if .Values.tls.existingSecret }}
- name: TANDEMQ_TLS_CONFIG
  value: /etc/tandemq/commands.tls.properties
{{- end }}
{{- if .Values.auth.enabled }}
- name: TANDEMQ_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ include "tandemq.userSecret" . }}, key: accessKey}}
- name: TANDEMQ_SECRET_KEY
  valueFrom: {secretKeyRef: {name: {{ include "tandemq.userSecret" . }}, key: secretKey}}
{{- end }}
{{- end -}}

{{/* Argument of servers with users: the first super user. */}}
{{- define "tandemq.initUser" -}}
{{- if .Values.auth.enabled }}
- '--set=initAuthenticationUser={"username":"$(TANDEMQ_ACCESS_KEY)","password":"$(TANDEMQ_SECRET_KEY)"}'
{{- end }}
{{- end -}}

{{- define "tandemq.mounts" -}}
- {name: config, mountPath: /etc/tandemq, readOnly: true}
- {name: replication, mountPath: /run/tandemq/replication, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if .Values.tls.existingSecret }}
- {name: tls, mountPath: /run/tandemq/tls, readOnly: true}
{{- end }}
{{- if .Values.registry.etcd.existingSecret }}
- {name: etcd, mountPath: /run/tandemq/etcd, readOnly: true}
{{- end }}
{{- end -}}

{{- define "tandemq.volumes" -}}
- name: config
  configMap: {name: {{ include "tandemq.fullname" . }}}
- name: replication
  secret: {secretName: {{ include "tandemq.replicationSecret" . }}, defaultMode: 0400}
- name: tmp
  emptyDir: {}
{{- with .Values.tls.existingSecret }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0400}
{{- end }}
{{- with .Values.registry.etcd.existingSecret }}
- name: etcd
  secret: {secretName: {{ . }}, defaultMode: 0400}
{{- end }}
{{- end -}}

{{/* First fields of each pod's specification. */}}
{{- define "tandemq.pod" -}}
serviceAccountName: {{ include "tandemq.serviceAccount" . }}
automountServiceAccountToken: false
# Services of this namespace are no settings.
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- end -}}

{{/* First fields of each container. */}}
{{- define "tandemq.container" -}}
image: {{ include "tandemq.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {{- toYaml .Values.containerSecurityContext | nindent 2 }}
{{- end -}}

{{/* Where pods run. Argument: dict root, of (the component's values), component, and perhaps group. */}}
{{- define "tandemq.placement" -}}
{{- $labels := include "tandemq.selector" (dict "root" .root "component" .component "group" .group) -}}
{{- with .root.Values.topologySpreadConstraints }}
topologySpreadConstraints:
{{- range . }}
  - {{ toYaml . | nindent 4 | trim }}
    labelSelector:
      matchLabels: {{- $labels | nindent 8 }}
{{- end }}
{{- end }}
{{- with .of.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* The three probes of the port `metrics`. Argument: threshold of the startup probe, of 5 s each. */}}
{{- define "tandemq.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ . }}
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
# The event loop turns; another process that is away does not restart this one.
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end -}}

{{/* The volume `data` unless a StatefulSet makes its claims. Argument: the values of persistence. */}}
{{- define "tandemq.dataVolume" -}}
{{- if not .enabled }}
- name: data
  emptyDir: {}
{{- else if .existingClaim }}
- name: data
  persistentVolumeClaim: {claimName: {{ .existingClaim }}}
{{- end }}
{{- end -}}

{{/* Specification of a claim. Argument: the values of persistence. */}}
{{- define "tandemq.claim" -}}
accessModes: {{- toYaml .accessModes | nindent 2 }}
{{- with .storageClass }}
storageClassName: {{ . | quote }}
{{- end }}
resources:
  requests:
    storage: {{ .size }}
{{- end -}}

{{- define "tandemq.claimTemplates" -}}
{{- if and .enabled (not .existingClaim) }}
volumeClaimTemplates:
  - metadata:
      name: data
    spec: {{- include "tandemq.claim" . | nindent 6 }}
{{- end }}
{{- end -}}

{{/* Options of `tandemq ha config set` that name the members of a group. Argument: the group. */}}
{{- define "tandemq.memberArgs" -}}
{{- range $id := until (int .replicas) }}
- --member={{ $id }},role={{ if $id }}slave{{ else }}master{{ end }}
{{- end }}
{{- end -}}

{{/* Containers that bring the groups into the database: first those of the registry, then what they lack. */}}
{{- define "tandemq.configure" -}}
- name: import
  {{- include "tandemq.container" . | nindent 2 }}
  args: [ha, config, import, --cluster={{ .Values.clusterName }}]
  env: {{- include "tandemq.databaseEnvironment" . | nindent 4 }}
  volumeMounts: {{- include "tandemq.databaseMounts" . | nindent 4 }}
{{- range .Values.groups }}
- name: set-{{ .name }}
  {{- include "tandemq.container" $ | nindent 2 }}
  args:
    - ha
    - config
    - set
    - {{ .name }}
    - --add-only
    - --cluster={{ $.Values.clusterName }}
    - --mode={{ .mode | default "elect" }}
    {{- include "tandemq.memberArgs" . | trim | nindent 4 }}
  env: {{- include "tandemq.databaseEnvironment" $ | nindent 4 }}
  volumeMounts: {{- include "tandemq.databaseMounts" $ | nindent 4 }}
{{- end }}
{{- end -}}

{{- define "tandemq.databaseEnvironment" -}}
{{ include "tandemq.environment" . }}
- name: TANDEMQ_DATABASE
  value: sqlite:////var/lib/tandemq/console.db
{{- end -}}

{{- define "tandemq.databaseMounts" -}}
{{ include "tandemq.mounts" . }}
- {name: data, mountPath: /var/lib/tandemq}
{{- end -}}

{{/* Settings that switch access control on, as JSON. */}}
{{- define "tandemq.users" -}}
{{- if .Values.auth.enabled -}}
{{- toJson (dict "authenticationEnabled" "true" "authorizationEnabled" "true") -}}
{{- else -}}
{}
{{- end -}}
{{- end -}}

{{/* The configuration files. A pod has the checksum of its own one. */}}
{{- define "tandemq.namesrvFile" -}}
{{- $common := include "tandemq.common" . | fromJson -}}
{{- $own := dict "listenPort" 9876 "metricsPort" 5558 "kvConfigPath" "/var/lib/tandemq/namesrv" -}}
{{- include "tandemq.properties" (list $common $own .Values.nameServer.extraConfig) | trim -}}
{{- end -}}

{{- define "tandemq.proxyFile" -}}
{{- $common := include "tandemq.common" . | fromJson -}}
{{- $users := include "tandemq.users" . | fromJson -}}
{{- $own := dict "grpcServerPort" 8081 "metricsPort" 5559 "namesrvAddr" (include "tandemq.nameServers" .) -}}
{{- include "tandemq.properties" (list $common $own $users .Values.proxy.extraConfig) | trim -}}
{{- end -}}

{{/* Argument: dict root, group. */}}
{{- define "tandemq.groupFile" -}}
{{- $root := .root -}}
{{- $replicas := int .group.replicas -}}
{{- $common := include "tandemq.common" $root | fromJson -}}
{{- $users := include "tandemq.users" $root | fromJson -}}
{{- $own := dict
      "brokerName" .group.name
      "brokerClusterName" $root.Values.clusterName
      "listenPort" 10911
      "metricsPort" 5557
      "storePathRootDir" "/var/lib/tandemq/store"
      "namesrvAddr" (include "tandemq.nameServers" $root)
      "registryAddr" (include "tandemq.registry" $root)
      "inSyncReplicas" (ternary 2 1 (gt $replicas 1))
      "minInSyncReplicas" (ternary 2 1 (gt $replicas 2)) -}}
{{- if and $root.Values.tls.existingSecret $root.Values.tls.replication -}}
{{- $_ := set $own "haTlsCertFile" "/run/tandemq/tls/tls.crt" -}}
{{- $_ := set $own "haTlsKeyFile" "/run/tandemq/tls/tls.key" -}}
{{- $_ := set $own "haTlsCaFile" "/run/tandemq/tls/ca.crt" -}}
{{- end -}}
{{- $layers := list $common $own $users $root.Values.broker.extraConfig (.group.extraConfig | default dict) -}}
{{- include "tandemq.properties" $layers | trim -}}
{{- end -}}
