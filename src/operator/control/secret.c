/* SPDX-License-Identifier: Apache-2.0 */
/* secret: the texts of Secrets of certificates. */
#include <stdlib.h>

#include "base/codec/codec.h"
#include "operator/control/control_priv.h"

void item_tls_fini(struct item_tls *t)
{
	pki_pair_fini(&t->pair);
	cgn_buf_fini(&t->bundle);
	cgn_buf_fini(&t->crl);
}

void item_tls_drop(struct item *i)
{
	if (i->tls == NULL)
		return;
	item_tls_fini(i->tls);
	free(i->tls);
	i->tls = NULL;
}

/* Append the bytes of data.|key|, and a NUL that is not counted. */
static void data_get(struct json_val data, const char *key, struct cgn_buf *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf coded = {.n = 0};
	struct json_val v;
	if (!json_get(data, key, &v) || v.type != JSON_STRING)
		return;
	json_str_to(v, &coded);
	if (!base64_get(out, cgn_buf_view(&coded)))
		out->n = 0;
	(void)cgn_buf_z(out);
}

void secret_read(struct json_val object, struct item_tls *out)
{
	struct json_val data = {.type = JSON_NULL};
	*out = (struct item_tls){.authority = false};
	(void)json_get(object, "data", &data);
	data_get(data, "tls.crt", &out->pair.cert);
	data_get(data, "tls.key", &out->pair.key);
	data_get(data, "ca.crt", &out->bundle);
	data_get(data, "crl.pem", &out->crl);
	if (out->pair.cert.n > 0 || out->pair.key.n > 0)
		return;
	data_get(data, "ca.pem", &out->pair.cert); /* As cgn-ctl pki and the Helm chart name them. */
	data_get(data, "ca.key", &out->pair.key);
}

/* Is it one of ours? By its label, which others' Secrets do not have. */
static bool component_is(struct json_val object, const char *component)
{
	struct json_val meta, labels, v;
	return json_get(object, "metadata", &meta) && json_get(meta, "labels", &labels) &&
		json_get(labels, "app.kubernetes.io/component", &v) && v.type == JSON_STRING &&
		v.raw.n == strlen(component) + 2 && memcmp(v.raw.p + 1, component, v.raw.n - 2) == 0;
}

static bool texts_equal(const struct cgn_buf *a, const struct cgn_buf *b)
{
	return cgn_str_eq(cgn_buf_view(a), cgn_buf_view(b));
}

bool item_tls_take(struct item *i, struct json_val object)
{
	bool authority = component_is(object, CERTS_AUTHORITY);
	struct item_tls now;
	if (!authority && !component_is(object, CERTS_LEAF))
		return false;
	secret_read(object, &now);
	now.authority = authority;
	if (i->tls == NULL)
		i->tls = CGN_NEW(struct item_tls);
	bool same = texts_equal(&now.pair.cert, &i->tls->pair.cert) &&
		texts_equal(&now.pair.key, &i->tls->pair.key) && texts_equal(&now.bundle, &i->tls->bundle) &&
		texts_equal(&now.crl, &i->tls->crl);
	item_tls_fini(i->tls);
	*i->tls = now;
	return !same;
}
