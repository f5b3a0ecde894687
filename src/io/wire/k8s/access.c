/* SPDX-License-Identifier: Apache-2.0 */
/* access: where the API server is, and with which credentials: of a kubeconfig in JSON, or of the pod. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/codec/codec.h"
#include "io/net/net/addr.h"
#include "io/os/disk/disk.h"
#include "io/wire/k8s/k8s_priv.h"

#define MAX_FILE ((size_t)1 << 20)
#define POD_DIR  "/var/run/secrets/kubernetes.io/serviceaccount/"

void k8s_access_fini(struct k8s_access *a)
{
	for (size_t i = 0; i < a->n_memory; i++)
		(void)close(a->memory[i]);
	if (a->token != NULL)
		explicit_bzero(a->token, strlen(a->token));
	char *const owned[] = {a->address, a->server_name, a->space, a->token, a->token_file, a->ca_file,
		a->cert_file, a->key_file};
	for (size_t i = 0; i < CGN_COUNT(owned); i++)
		free(owned[i]);
	*a = (struct k8s_access){.n_memory = 0};
}

static void text_keep(struct cgn_str s, char **out)
{
	free(*out);
	*out = cgn_str_dupz(s);
}

/* Return the member of |object| if it has one; |what| is for the message. CGN_INVALID: another type. */
static CGN_RC text_member(struct json_val object, const char *key, char **out, const char *file,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	struct json_val v;
	if (!json_get(object, key, &v) || v.type == JSON_NULL)
		return CGN_OK;
	if (v.type != JSON_STRING)
		return CGN_FAIL(err, INVALID, "%s: \"%s\" must be a text", file, key);
	json_str_to(v, &text);
	if (text.n == 0 && !text.bad)
		return CGN_OK;
	text_keep(cgn_buf_view(&text), out);
	return *out != NULL ? CGN_OK
			    : CGN_FAIL(err, NO_MEMORY, "no memory for the credentials of Kubernetes");
}

/* Keep a file that the kubeconfig has inside, as base64, in memory: TLS contexts read files. */
static CGN_RC memory_file(struct k8s_access *a, struct json_val object, const char *key, char **out,
	const char *file, struct cgn_err *err)
{
	char *text = NULL;
	char path[40];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf bytes = {.limit = MAX_FILE};
	CGN_TRY(text_member(object, key, &text, file, err));
	if (text == NULL)
		return CGN_OK;
	bool ok = base64_get(&bytes, cgn_str_of(text));
	explicit_bzero(text, strlen(text));
	free(text);
	if (!ok)
		return CGN_FAIL(err, INVALID, "%s: \"%s\" is not base64", file, key);
	CGN_MUST(a->n_memory < K8S_MEMORY_FILES);
	int fd = memfd_create("kubeconfig", MFD_CLOEXEC);
	if (fd < 0)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the credentials of Kubernetes");
	a->memory[a->n_memory++] = fd;
	ssize_t n = write(fd, bytes.p, bytes.n);
	explicit_bzero(bytes.p, bytes.n);
	if (n < 0 || (size_t)n != bytes.n)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the credentials of Kubernetes");
	(void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	text_keep(cgn_str_of(path), out);
	return CGN_OK;
}

/* Find the entry of that name in a list of {"name", |kind|: {...}}. */
static bool entry_find(struct json_val config, const char *list, const char *kind, const char *name,
	struct json_val *out)
{
	struct json_val all, one, v;
	if (!json_get(config, list, &all) || all.type != JSON_ARRAY)
		return false;
	for (struct json_iter it = json_iter_of(all); json_next_elem(&it, &one);) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
		if (!json_get(one, "name", &v) || v.type != JSON_STRING)
			continue;
		json_str_to(v, &text);
		if (cgn_str_is(cgn_buf_view(&text), name))
			return json_get(one, kind, out) && out->type == JSON_OBJECT;
	}
	return false;
}

/* Keep "host:port" of "https://host[:port]". Also "http://", as of kubectl proxy. */
static CGN_RC server_read(struct k8s_access *a, const char *url, bool *tls, const char *file,
	struct cgn_err *err)
{
	struct cgn_str rest = cgn_str_of(url);
	struct net_addr addr;
	char text[300];
	*tls = cgn_str_starts(rest, "https://");
	if (!*tls && !cgn_str_starts(rest, "http://"))
		return CGN_FAIL(err, INVALID, "%s: the server \"%.100s\" must begin with https://", file,
			url);
	rest.p += *tls ? 8 : 7;
	rest.n -= *tls ? 8 : 7;
	while (rest.n > 0 && rest.p[rest.n - 1] == '/')
		rest.n--;
	if (memchr(rest.p, '/', rest.n) != NULL)
		return CGN_FAIL(err, UNSUPPORTED,
			"%s: the server \"%.100s\" has a path, which is not supported", file, url);
	const char *colon = memrchr(rest.p, ':', rest.n);
	bool port = colon != NULL && memchr(colon, ']', rest.n - (size_t)(colon - rest.p)) == NULL;
	(void)snprintf(text, sizeof text, port ? "%.*s" : *tls ? "%.*s:443" : "%.*s:80", CGN_STR_ARG(rest));
	if (!cgn_ok(net_addr_parse(text, &addr, NULL)))
		return CGN_FAIL(err, INVALID, "%s: the server \"%.100s\" has no valid host and port", file,
			url);
	text_keep(cgn_str_of(text), &a->address);
	return CGN_OK;
}

static CGN_RC cluster_read(struct k8s_access *a, struct json_val cluster, bool *tls, const char *file,
	struct cgn_err *err)
{
	char *url = NULL;
	if (json_get_bool(cluster, "insecure-skip-tls-verify", false))
		return CGN_FAIL(err, UNSUPPORTED,
			"%s: insecure-skip-tls-verify is not supported: name the authority in certificate-authority",
			file);
	CGN_TRY(text_member(cluster, "server", &url, file, err));
	if (url == NULL)
		return CGN_FAIL(err, INVALID, "%s: the cluster of the current context has no server", file);
	cgn_rc rc = server_read(a, url, tls, file, err);
	free(url);
	CGN_TRY(rc);
	CGN_TRY(text_member(cluster, "tls-server-name", &a->server_name, file, err));
	CGN_TRY(text_member(cluster, "certificate-authority", &a->ca_file, file, err));
	return memory_file(a, cluster, "certificate-authority-data", &a->ca_file, file, err);
}

static CGN_RC user_read(struct k8s_access *a, struct json_val user, const char *file, struct cgn_err *err)
{
	static const char *const foreign[] = {"exec", "auth-provider", "username"};
	struct json_val v;
	for (size_t i = 0; i < CGN_COUNT(foreign); i++)
		if (json_get(user, foreign[i], &v) && v.type != JSON_NULL)
			return CGN_FAIL(err, UNSUPPORTED,
				"%s: the user has \"%s\", which is not supported: use a certificate, token or tokenFile",
				file, foreign[i]);
	CGN_TRY(text_member(user, "token", &a->token, file, err));
	CGN_TRY(text_member(user, "tokenFile", &a->token_file, file, err));
	CGN_TRY(text_member(user, "client-certificate", &a->cert_file, file, err));
	CGN_TRY(text_member(user, "client-key", &a->key_file, file, err));
	CGN_TRY(memory_file(a, user, "client-certificate-data", &a->cert_file, file, err));
	return memory_file(a, user, "client-key-data", &a->key_file, file, err);
}

static CGN_RC context_read(struct k8s_access *a, struct json_val config, const char *file,
	struct cgn_err *err)
{
	char *name = NULL, *cluster = NULL, *user = NULL;
	struct json_val context = {0}, v = {0};
	bool tls = false;
	cgn_rc rc = text_member(config, "current-context", &name, file, err);
	if (cgn_ok(rc) && (name == NULL || !entry_find(config, "contexts", "context", name, &context)))
		rc = CGN_FAIL(err, INVALID, "%s: there is no context \"%.100s\" (current-context)", file,
			name != NULL ? name : "");
	if (cgn_ok(rc))
		rc = text_member(context, "namespace", &a->space, file, err);
	if (cgn_ok(rc))
		rc = text_member(context, "cluster", &cluster, file, err);
	if (cgn_ok(rc))
		rc = text_member(context, "user", &user, file, err);
	if (cgn_ok(rc) && (cluster == NULL || !entry_find(config, "clusters", "cluster", cluster, &v)))
		rc = CGN_FAIL(err, INVALID, "%s: there is no cluster \"%.100s\"", file,
			cluster != NULL ? cluster : "");
	if (cgn_ok(rc))
		rc = cluster_read(a, v, &tls, file, err);
	if (cgn_ok(rc) && user != NULL && entry_find(config, "users", "user", user, &v))
		rc = user_read(a, v, file, err);
	if (cgn_ok(rc) && tls && a->ca_file == NULL)
		text_keep(CGN_STR(""), &a->ca_file);
	if (cgn_ok(rc) && !tls && (a->token != NULL || a->token_file != NULL || a->cert_file != NULL))
		rc = CGN_FAIL(err, INVALID, "%s: credentials are not sent to a server without TLS", file);
	free(name);
	free(cluster);
	free(user);
	return rc;
}

static CGN_RC file_read(const char *kubeconfig, struct k8s_access *a, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	struct json_val config;
	struct cgn_err why = {0};
	CGN_TRY(disk_read_file(kubeconfig, MAX_FILE, &text, err));
	if (!cgn_ok(json_parse(cgn_buf_view(&text), &config, NULL, &why)) || config.type != JSON_OBJECT)
		return CGN_FAIL(err, INVALID,
			"%.100s is not JSON: write it with kubectl config view --raw --flatten --minify -o json",
			kubeconfig);
	return context_read(a, config, kubeconfig, err);
}

static CGN_RC pod_read(struct k8s_access *a, struct cgn_err *err)
{
	const char *host = getenv("KUBERNETES_SERVICE_HOST"), *port = getenv("KUBERNETES_SERVICE_PORT");
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf space = {.n = 0};
	char text[300];
	if (host == NULL || port == NULL)
		return CGN_FAIL(err, UNAVAILABLE,
			"this is not a pod of Kubernetes (KUBERNETES_SERVICE_HOST is not set): name a kubeconfig");
	(void)snprintf(text, sizeof text, strchr(host, ':') != NULL ? "[%.200s]:%.8s" : "%.200s:%.8s", host,
		port);
	text_keep(cgn_str_of(text), &a->address);
	text_keep(CGN_STR(POD_DIR "ca.crt"), &a->ca_file);
	text_keep(CGN_STR(POD_DIR "token"), &a->token_file);
	CGN_TRY(disk_read_file(POD_DIR "namespace", 256, &space, err));
	text_keep(cgn_buf_view(&space), &a->space);
	return CGN_OK;
}

CGN_RC k8s_access_read(const char *kubeconfig, struct k8s_access *out, struct cgn_err *err)
{
	struct k8s_access a = {.n_memory = 0};
	cgn_rc rc = kubeconfig != NULL ? file_read(kubeconfig, &a, err) : pod_read(&a, err);
	if (cgn_ok(rc) && a.space == NULL)
		text_keep(CGN_STR("default"), &a.space);
	if (!cgn_ok(rc)) {
		k8s_access_fini(&a);
		return rc;
	}
	*out = a;
	return CGN_OK;
}
