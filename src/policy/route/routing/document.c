/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/routing/document.h"

#include "base/json/json.h"

static const char *const names[] = {"kv", "load", "power", "capacity"};
#define WEIGHTS CGN_COUNT(names)

static double *weight_at(struct route_weights *w, size_t i)
{
	double *const at[WEIGHTS] = {&w->kv, &w->load, &w->power, &w->capacity};
	return at[i];
}

CGN_RC route_weights_check(const struct route_weights *w, struct cgn_err *err)
{
	struct route_weights copy = *w;
	double sum = 0;
	for (size_t i = 0; i < WEIGHTS; i++) {
		double v = *weight_at(&copy, i);
		if (!(v >= 0 && v <= 1))
			return CGN_FAIL(err, INVALID, "the weight %s is %g: weights are from 0 to 1",
				names[i], v);
		sum += v;
	}
	if (!(sum >= 1 - ROUTE_SUM_SLACK && sum <= 1 + ROUTE_SUM_SLACK))
		return CGN_FAIL(err, INVALID,
			"the weights kv=%g, load=%g, power=%g and capacity=%g are %.9g together: they must be 1",
			w->kv, w->load, w->power, w->capacity, sum);
	return CGN_OK;
}

/* Check that each member of |object| is in |known| and occurs once. */
static CGN_RC members_check(struct json_val object, const char *const *known, size_t n, const char *of,
	struct cgn_err *err)
{
	struct json_iter it = json_iter_of(object);
	struct cgn_str key;
	struct json_val v;
	unsigned seen = 0;
	while (json_next_member(&it, &key, &v)) {
		size_t i = 0;
		while (i < n && !cgn_str_is(key, known[i]))
			i++;
		if (i == n)
			return CGN_FAIL(err, INVALID, "%s has no member \"%.*s\"", of,
				(int)(key.n < 64 ? key.n : 64), key.p);
		if (seen & 1U << i)
			return CGN_FAIL(err, INVALID, "%s has \"%s\" twice", of, known[i]);
		seen |= 1U << i;
	}
	return CGN_OK;
}

static CGN_RC weights_read(struct json_val v, struct route_weights *out, struct cgn_err *err)
{
	struct json_val w[WEIGHTS];
	if (v.type != JSON_OBJECT)
		return CGN_FAIL(err, INVALID, "\"weights\" is not an object of kv, load, power and capacity");
	CGN_TRY(members_check(v, names, WEIGHTS, "\"weights\"", err));
	json_pick(v, names, WEIGHTS, w);
	for (size_t i = 0; i < WEIGHTS; i++)
		if (w[i].raw.p == NULL || !json_f64(w[i], weight_at(out, i)))
			return CGN_FAIL(err, INVALID,
				"\"weights\" lacks the number \"%s\": all four are given together", names[i]);
	return route_weights_check(out, err);
}

static CGN_RC policy_read(struct json_val v, enum route_policy *out, struct cgn_err *err)
{
	char room[128];
	struct cgn_buf name = cgn_buf_over(room, sizeof room);
	if (v.type != JSON_STRING)
		return CGN_FAIL(err, INVALID, "\"policy\" is not a string");
	json_str_to(v, &name);
	if (name.bad)
		return CGN_FAIL(err, INVALID, "\"policy\" is too long for the name of a policy");
	return route_document_policy(cgn_buf_view(&name), out, err);
}

static CGN_RC document_read(struct cgn_str text, struct route_document *out, struct cgn_err *err)
{
	static const char *const members[] = {"policy", "weights"};
	struct json_val doc, v[CGN_COUNT(members)];
	struct route_document d = {.has_policy = false};
	CGN_TRY(json_parse(text, &doc, NULL, err));
	if (doc.type != JSON_OBJECT)
		return CGN_FAIL(err, INVALID, "it is not a JSON object");
	CGN_TRY(members_check(doc, members, CGN_COUNT(members), "the document", err));
	json_pick(doc, members, CGN_COUNT(members), v);
	d.has_policy = v[0].raw.p != NULL;
	d.has_weights = v[1].raw.p != NULL;
	if (d.has_policy)
		CGN_TRY(policy_read(v[0], &d.policy, err));
	if (d.has_weights)
		CGN_TRY(weights_read(v[1], &d.weights, err));
	*out = d;
	return CGN_OK;
}

CGN_RC route_document_read(struct cgn_str text, struct route_document *out, struct cgn_err *err)
{
	cgn_rc rc = document_read(text, out, err);
	if (cgn_ok(rc) || err == NULL)
		return rc;
	for (char *p = err->msg; *p != '\0'; p++)
		if (*p < ' ' || *p > '~')
			*p = '?';
	return rc;
}

void route_document_write(const struct route_document *d, struct cgn_buf *out)
{
	struct json_out j = json_out_to(out);
	struct route_weights w = d->weights;
	json_open(&j, '{');
	if (d->has_policy) {
		json_key_z(&j, "policy", route_policy_text(d->policy));
	}
	if (d->has_weights) {
		json_key_open(&j, "weights", '{');
		for (size_t i = 0; i < WEIGHTS; i++) {
			json_key_f64(&j, names[i], *weight_at(&w, i));
		}
		json_close(&j, '}');
	}
	json_close(&j, '}');
}

CGN_RC route_document_policy(struct cgn_str name, enum route_policy *out, struct cgn_err *err)
{
	char room[256];
	struct cgn_buf all = cgn_buf_over(room, sizeof room);
	if (route_policy_find(name, out))
		return CGN_OK;
	for (size_t i = 0; i < ROUTE_POLICIES; i++)
		cgn_buf_fmt(&all, ", %s", route_policy_text((enum route_policy)i));
	return CGN_FAIL(err, INVALID, "\"%.*s\" is not a policy; they are kv%s",
		(int)(name.n < 64 ? name.n : 64), name.p, cgn_buf_z(&all));
}

void route_document_apply(const struct route_document *d, struct route_rules *rules)
{
	if (d->has_policy)
		rules->policy = d->policy;
	if (d->has_weights)
		rules->weights = d->weights;
}
