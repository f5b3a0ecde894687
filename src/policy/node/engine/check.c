/* SPDX-License-Identifier: Apache-2.0 */
/* engine: the settings of [[engines]]: keys that need each other, and an order in which all can start. */
#include "policy/node/engine/engine.h"

#define ENGINES_MOST 64 /* Tables that a file may have: policy/config */

static cgn_rc check_kv_events(const struct config *c, size_t i, struct cgn_err *err)
{
	const struct config_engine *e = &c->engines[i];
	const char *const rows[][2] = {{"kv_events", e->kv_events},
		{"kv_events_replay", e->kv_events_replay}};
	for (size_t k = 0; k < CGN_COUNT(rows); k++)
		if (rows[k][1] != NULL && strcmp(rows[k][1], "none") != 0 &&
			!config_is_zmq_endpoint(rows[k][1]))
			return CGN_FAIL(err, INVALID,
				"%s: engine %s is \"%.100s\", must be tcp://host:port, ipc:///path or none",
				config_engine_origin(c, i, rows[k][0]), rows[k][0], rows[k][1]);
	if (e->kv_events_replay != NULL && e->kv_events == NULL)
		return CGN_FAIL(err, INVALID,
			"%s: engine kv_events_replay needs kv_events, the endpoint of the events themselves",
			config_engine_origin(c, i, "kv_events_replay"));
	return CGN_OK;
}

static cgn_rc check_unit(const struct config *c, size_t i, struct cgn_err *err)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:-_.\\@";
	const struct config_engine *e = &c->engines[i];
	const char *unit = e->systemd_unit;
	if (unit == NULL)
		return CGN_OK;
	if (e->managed)
		return CGN_FAIL(err, INVALID,
			"%s: systemd runs the unit of systemd_unit, so managed = true is not for engine \"%s\"",
			config_engine_origin(c, i, "systemd_unit"), e->name);
	if (unit[strspn(unit, letters)] != '\0' || unit[0] == '-')
		return CGN_FAIL(err, INVALID, "%s: \"%s\" is not the name of a unit, such as vllm.service",
			config_engine_origin(c, i, "systemd_unit"), unit);
	return CGN_OK;
}

/* Would two engines of these names have the same files? */
static bool files_are_shared(const char *a, const char *b)
{
	while (*a != '\0' && config_file_char(*a) == config_file_char(*b)) {
		a++;
		b++;
	}
	return *a == *b;
}

static cgn_rc check_engine(const struct config *c, size_t i, struct cgn_err *err)
{
	const struct config_engine *e = &c->engines[i];
	if (e->managed && e->kind == ENGINE_OPENAI_COMPAT)
		return CGN_FAIL(err, INVALID,
			"%s: managed = true is not for kind openai_compat, which may be any program; start it yourself and give its url, or name its kind",
			config_engine_origin(c, i, "managed"));
	CGN_TRY(check_unit(c, i, err));
	if (!config_is_http_url(e->url))
		return CGN_FAIL(err, INVALID, "%s: engine url must be http://host:port or https://host:port",
			config_engine_origin(c, i, "url"));
	CGN_TRY(check_kv_events(c, i, err));
	for (size_t j = 0; j < i; j++) {
		if (strcmp(c->engines[j].name, e->name) == 0)
			return CGN_FAIL(err, INVALID, "%s: two engines are called \"%s\"",
				config_engine_origin(c, i, "name"), e->name);
		if (files_are_shared(c->engines[j].name, e->name))
			return CGN_FAIL(err, INVALID,
				"%s: the engines \"%.64s\" and \"%.64s\" would have the same files, whose names have _ for . and / and blanks: rename one",
				config_engine_origin(c, i, "name"), c->engines[j].name, e->name);
	}
	return CGN_OK;
}

static size_t engine_called(const struct config *c, const char *name)
{
	size_t i = 0;
	while (i < c->n_engines && strcmp(c->engines[i].name, name) != 0)
		i++;
	return i;
}

static cgn_rc check_on_demand(const struct config *c, size_t i, struct cgn_err *err)
{
	const struct config_engine *e = &c->engines[i];
	if (e->keep_alive > 0 && !e->managed)
		return CGN_FAIL(err, INVALID,
			"%s: keep_alive is for managed engines, and engine \"%s\" is not managed",
			config_engine_origin(c, i, "keep_alive"), e->name);
	if (!config_is_on_demand(c, e))
		return CGN_OK;
	if (e->model == NULL)
		return CGN_FAIL(err, INVALID,
			"%s: engine \"%s\" is loaded on demand (agent.max_loaded, agent.memory or keep_alive) and has no model: set the name that clients ask for, because an engine that is not loaded cannot tell it",
			config_engine_origin(c, i, "model"), e->name);
	if (e->orphan_time > 0)
		return CGN_FAIL(err, INVALID,
			"%s: engine \"%s\" is loaded on demand (agent.max_loaded, agent.memory or keep_alive): its orphan_time must be 0, because an agent that starts anew counts no engine as loaded",
			config_engine_origin(c, i, "orphan_time"), e->name);
	if (c->agent.memory > 0 && e->memory > c->agent.memory)
		return CGN_FAIL(err, INVALID,
			"%s: engine \"%s\" takes %llu bytes of memory, more than agent.memory, %llu: it could never be loaded",
			config_engine_origin(c, i, "memory"), e->name, (unsigned long long)e->memory,
			(unsigned long long)c->agent.memory);
	return CGN_OK;
}

static cgn_rc check_start_after(const struct config *c, size_t i, struct cgn_err *err)
{
	const struct config_engine *e = &c->engines[i];
	if (e->start_after.n > 0 && !e->managed)
		return CGN_FAIL(err, INVALID,
			"%s: start_after is for managed engines, and engine \"%s\" is not managed",
			config_engine_origin(c, i, "start_after"), e->name);
	for (size_t k = 0; k < e->start_after.n; k++)
		if (engine_called(c, e->start_after.v[k]) == c->n_engines)
			return CGN_FAIL(err, INVALID,
				"%s: start_after names \"%.64s\", and no engine has that name",
				config_engine_origin(c, i, "start_after"), e->start_after.v[k]);
	return CGN_OK;
}

/* True when the engine waits for none but those that |starts| names. */
static bool can_start(const struct config *c, size_t i, const bool *starts)
{
	for (size_t k = 0; k < c->engines[i].start_after.n; k++)
		if (!starts[engine_called(c, c->engines[i].start_after.v[k])])
			return false;
	return true;
}

/* Start in thought whatever can start, until nothing more can. */
static cgn_rc check_start_order(const struct config *c, struct cgn_err *err)
{
	bool starts[ENGINES_MOST] = {false}, more = true;
	size_t n = c->n_engines;
	CGN_MUST(n <= ENGINES_MOST);
	for (size_t i = 0; i < n; i++)
		CGN_TRY(check_start_after(c, i, err));
	while (more) {
		more = false;
		for (size_t i = 0; i < n; i++)
			if (!starts[i] && can_start(c, i, starts))
				starts[i] = more = true;
	}
	for (size_t i = 0; i < n; i++)
		if (!starts[i])
			return CGN_FAIL(err, INVALID,
				"%s: engine \"%s\" waits for itself: start_after goes in a circle",
				config_engine_origin(c, i, "start_after"), c->engines[i].name);
	return CGN_OK;
}

CGN_RC engine_check_config(const struct config *c, struct cgn_err *err)
{
	for (size_t i = 0; i < c->n_engines; i++)
		CGN_TRY(check_engine(c, i, err));
	CGN_TRY(check_start_order(c, err));
	for (size_t i = 0; i < c->n_engines; i++)
		CGN_TRY(check_on_demand(c, i, err));
	return CGN_OK;
}
