/* SPDX-License-Identifier: Apache-2.0 */
/* engines: the servers that others wrote: inference engines and etcd. */
#include <string.h>

#include "ctl/doctor/doctor.h"

void check_engine(struct doctor *d)
{
	size_t asked = 0;
	for (size_t i = 0; i < d->cfg->n_engines && i < CGN_COUNT(d->engines); i++) {
		const struct config_engine *e = &d->cfg->engines[i];
		const struct probe *q = d->engines[i];
		if (q == NULL)
			continue;
		asked++;
		if (q->status == 0) {
			doctor_find(d, DOCTOR_PROBLEM, "engine %s at %s: %s", e->name, e->url, q->why.msg);
			doctor_do(d, "start the engine, or correct engine.url");
		} else if (q->status == 401 || q->status == 403) {
			doctor_find(d, DOCTOR_PROBLEM, "engine %s at %s wants another API key (status %d)",
				e->name, e->url, q->status);
			doctor_do(d, "write the engine's key to a file and set engine.api_key_file");
		} else if (q->status >= 500) {
			doctor_find(d, DOCTOR_PROBLEM, "engine %s at %s answers status %d", e->name, e->url,
				q->status);
			doctor_do(d, "read the engine's own log");
		}
	}
	if (asked == 0)
		doctor_find(d, DOCTOR_SKIPPED, "no engine here is adopted by its URL");
	else if (doctor_is_fine(d))
		doctor_find(d, DOCTOR_OK, "the engines answer");
}

/* List the ids of an answer of /v1/models. False: |name| is not one of them. */
static bool answer_has_model(struct doctor *d, const struct probe *q, const char *name, struct cgn_buf *ids)
{
	struct json_val doc, data, model, id;
	bool found = false;
	if (!cgn_ok(json_parse(cgn_buf_view(&q->text), &doc, NULL, NULL)) || !json_get(doc, "data", &data))
		return true; /* Some engines have no list. */
	struct json_iter it = json_iter_of(data);
	while (json_next_elem(&it, &model))
		if (json_get(model, "id", &id) && id.type == JSON_STRING) {
			struct cgn_str text = json_str(id, &d->arena);
			found = found || cgn_str_is(text, name);
			cgn_buf_fmt(ids, "%s\"%.*s\"", ids->n > 0 ? ", " : "", CGN_STR_ARG(text));
		}
	return found;
}

void check_engine_model(struct doctor *d)
{
	size_t asked = 0;
	for (size_t i = 0; i < d->cfg->n_engines && i < CGN_COUNT(d->engines); i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf ids = {.limit = 600};
		const struct config_engine *e = &d->cfg->engines[i];
		if (d->engines[i] == NULL || d->engines[i]->status != 200 || e->model == NULL)
			continue;
		asked++;
		if (answer_has_model(d, d->engines[i], e->model, &ids))
			continue;
		doctor_find(d, DOCTOR_PROBLEM, "engine.model is \"%s\", and engine %s has %s", e->model,
			e->name, ids.n > 0 && !ids.bad ? cgn_buf_z(&ids) : "other models");
		doctor_do(d, "set engine.model to a name that the engine has, or remove the key");
	}
	if (asked == 0)
		doctor_find(d, DOCTOR_SKIPPED, "no engine that answers has engine.model");
	else if (doctor_is_fine(d))
		doctor_find(d, DOCTOR_OK, "the engines have their models");
}

/* ---- etcd ---- */

/* Return the number of members that the cluster has; 0: unknown. */
static size_t members_count(const struct probe *q)
{
	struct json_val doc, members, member;
	size_t n = 0;
	if (q == NULL || q->status != 200 || !cgn_ok(json_parse(cgn_buf_view(&q->text), &doc, NULL, NULL)) ||
		!json_get(doc, "members", &members))
		return 0;
	struct json_iter it = json_iter_of(members);
	while (json_next_elem(&it, &member))
		n++;
	return n;
}

void check_etcd(struct doctor *d)
{
	const struct config_list *list = &d->cfg->cluster.etcd_endpoints;
	size_t healthy = 0, members = 0;
	if (d->cfg->cluster.state_backend != STATE_ETCD) {
		doctor_find(d, DOCTOR_SKIPPED, "cluster.state_backend is not etcd");
		return;
	}
	for (size_t i = 0; i < list->n && i < CGN_COUNT(d->etcd); i++) {
		healthy += d->etcd[i] != NULL && d->etcd[i]->status == 200;
		size_t n = members_count(d->members[i]);
		members = n > members ? n : members;
	}
	for (size_t i = 0; i < list->n && i < CGN_COUNT(d->etcd); i++) {
		const struct probe *q = d->etcd[i];
		if (q != NULL && q->status == 200)
			continue;
		doctor_find(d, healthy == 0 ? DOCTOR_PROBLEM : DOCTOR_WARNING, "etcd %s: %s", list->v[i],
			q == NULL               ? "no URL of a server"
				: q->status > 0 ? "not healthy: it may lack a leader"
						: q->why.msg);
		doctor_do(d,
			"etcdctl --endpoints %s endpoint health; then start that member, or correct cluster.etcd_endpoints",
			list->v[i]);
	}
	if (members == 1) {
		doctor_find(d, DOCTOR_WARNING, "etcd has one member: without it no node can join or leave");
		doctor_do(d, "run three members on three machines");
	}
	if (doctor_is_fine(d))
		doctor_find(d, DOCTOR_OK, "%zu endpoints are healthy, %zu members", healthy, members);
}
