/* SPDX-License-Identifier: Apache-2.0 */
/* kube_names: names, paths and keys of a cluster's objects in Kubernetes. */
#include <time.h>

#include "base/codec/codec.h"
#include "base/crypto/crypto.h"
#include "joint/cluster/state/kube_priv.h"

CGN_RC kube_place_open(struct cgn_loop *l, const struct config *cfg, struct kube_place *out,
	struct cgn_err *err)
{
	const char *space = cfg->cluster.kubernetes_namespace;
	CGN_TRY(k8s_new(l, cfg->cluster.kubernetes_config, &out->k8s, err));
	if (space == NULL)
		space = k8s_namespace(out->k8s);
	if (cgn_str_copyz(out->space, sizeof out->space, cgn_str_of(space)) &&
		cgn_str_copyz(out->cluster, sizeof out->cluster, cgn_str_of(cfg->cluster.name)))
		return CGN_OK;
	return CGN_FAIL(err, INVALID, "the namespace \"%.80s\" is too long", space);
}

void kube_place_close(struct kube_place *p)
{
	k8s_free(&p->k8s);
}

static bool is_name_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

/* Is it a DNS name in lower case (RFC 1123)? Each label begins and ends with a letter or digit. */
static bool is_dns_name(const char *s)
{
	char last = '.';
	for (; *s != '\0'; s++) {
		bool edge = *s == '.' || *s == '-';
		if ((!edge && !is_name_char(*s)) || (last == '.' && edge) || (last == '-' && *s == '.'))
			return false;
		last = *s;
	}
	return is_name_char(last);
}

void kube_lease_name(const struct kube_place *p, const char *id, char out[KUBE_NAME])
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf hex = {.n = 0};
	if (is_dns_name(id) && strncmp(id, "id.", 3) != 0) {
		(void)snprintf(out, KUBE_NAME, "%s.node.%s", p->cluster, id);
		return;
	}
	struct sha256 hash = crypto_sha256(cgn_str_of(id));
	hex_put(&hex, (struct cgn_str){(const char *)hash.b, 16});
	(void)snprintf(out, KUBE_NAME, "%s.node.id.%s", p->cluster, cgn_buf_z(&hex));
}

void kube_leases_path(const struct kube_place *p, char out[KUBE_MAX_PATH])
{
	(void)snprintf(out, KUBE_MAX_PATH, "/apis/coordination.k8s.io/v1/namespaces/%s/leases", p->space);
}

void kube_secrets_path(const struct kube_place *p, char out[KUBE_MAX_PATH])
{
	(void)snprintf(out, KUBE_MAX_PATH, "/api/v1/namespaces/%s/secrets", p->space);
}

#define CORDON "cordon."

bool kube_cordon_key(const char *id, char out[KUBE_NAME])
{
	struct cgn_buf b = cgn_buf_over(out, KUBE_NAME - 3); /* A key has at most 253 characters. */
	cgn_buf_putz(&b, CORDON);
	for (; *id != '\0'; id++) {
		bool plain = is_name_char(*id) || (*id >= 'A' && *id <= 'Z') || *id == '-' || *id == '.';
		cgn_buf_fmt(&b, plain ? "%c" : "_%02X", (unsigned char)*id);
	}
	return !b.bad && cgn_buf_z(&b)[0] != '\0';
}

bool kube_cordon_id(struct cgn_str key, char id[PROTO_MAX_ID + 1])
{
	struct cgn_buf b = cgn_buf_over(id, PROTO_MAX_ID + 1);
	if (!cgn_str_starts(key, CORDON))
		return false;
	for (size_t i = strlen(CORDON); i < key.n; i++) {
		if (key.p[i] != '_') {
			cgn_buf_char(&b, key.p[i]);
			continue;
		}
		int high = i + 2 < key.n ? hex_digit(key.p[i + 1]) : -1,
		    low = i + 2 < key.n ? hex_digit(key.p[i + 2]) : -1;
		if (high < 0 || low < 0)
			return false;
		cgn_buf_char(&b, (char)(high * 16 + low));
		i += 2;
	}
	return cgn_buf_z(&b)[0] != '\0' && !b.bad && proto_node_id_ok(cgn_buf_view(&b));
}

int64_t kube_seconds(struct cgn_str time)
{
	char text[40];
	struct tm tm = {.tm_isdst = 0};
	if (!cgn_str_copyz(text, sizeof text, time))
		return -1;
	const char *end = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
	return end != NULL && (*end == '.' || *end == 'Z') ? (int64_t)timegm(&tm) : -1;
}

bool kube_get2(struct json_val object, const char *key, const char *inner, struct json_val *out)
{
	struct json_val v;
	return json_get(object, key, &v) && json_get(v, inner, out);
}
