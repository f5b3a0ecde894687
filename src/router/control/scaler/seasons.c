/* SPDX-License-Identifier: Apache-2.0 */
/* seasons: the usual loads of the groups by the time of day, kept in a file of cluster.state_dir over restarts: a line
 * "group ROLE MODEL", then the lines of policy/fleet/autoscale/season.h. */
#include "base/seal/seal.h"
#include "router/control/scaler/scaler_priv.h"

#define SEASONS_KIND   "cognitora-autoscaler"
#define SEASONS_FORMAT 1
#define FILE_MAX       ((size_t)4 << 20) /* 64 groups of 768 lines fit. */

static void seasons_text(const struct scaler *s, struct cgn_buf *out)
{
	seal_begin(out, SEASONS_KIND, SEASONS_FORMAT);
	for (size_t i = 0; i < SCALER_GROUPS; i++) {
		const struct scaler_group *g = &s->groups[i];
		if (g->model[0] == '\0')
			continue;
		cgn_buf_fmt(out, "group %d %s\n", g->role, g->model);
		autoscale_season_put(&g->season, out);
	}
	seal_end(out);
}

static CGN_RC group_take(struct scaler *s, struct cgn_str line, struct scaler_group **g, struct cgn_err *err)
{
	struct cgn_str rest = line, word = cgn_str_split(&rest, ' ');
	char model[WANTED_MAX_NAME + 1];
	uint64_t role = 0;
	if (!cgn_str_eq(word, CGN_STR("group")) || !cgn_str_u64(cgn_str_split(&rest, ' '), &role) ||
		role > COGNITORA__V1__ROLE__ROLE_DECODE || rest.n == 0 ||
		!cgn_str_copyz(model, sizeof model, rest) ||
		(*g = scaler_group_find(s, model, (int)role)) == NULL)
		return CGN_FAIL(err, INVALID, "no group: %.*s", (int)(line.n < 60 ? line.n : 60), line.p);
	(*g)->seen = cgn_loop_now(s->r->loop);
	return CGN_OK;
}

static CGN_RC lines_take(struct scaler *s, struct cgn_str rest, struct cgn_err *err)
{
	struct scaler_group *g = NULL;
	while (rest.n > 0) {
		struct cgn_str line = cgn_str_split(&rest, '\n');
		if (g == NULL || cgn_str_starts(line, "group "))
			CGN_TRY(group_take(s, line, &g, err));
		else
			CGN_TRY(autoscale_season_take(&g->season, line, err));
	}
	return CGN_OK;
}

void router_scaler_load(struct scaler *s, const char *path)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	struct cgn_str lines;
	struct cgn_err why;
	s->seasons = statefile_open(s->r->loop, path, "usual loads of the autoscaler");
	if (!statefile_read(s->seasons, FILE_MAX, &text))
		return;
	cgn_rc rc = seal_open(cgn_buf_view(&text), SEASONS_KIND, SEASONS_FORMAT, &lines, &why);
	if (cgn_ok(rc))
		rc = lines_take(s, lines, &why);
	if (cgn_ok(rc))
		return;
	statefile_set_aside(s->seasons, why.msg);
	memset(s->groups, 0, sizeof s->groups);
}

void scaler_season_note(struct scaler *s, struct scaler_group *g)
{
	const struct autoscale_cfg cfg = scaler_group_cfg(s, g, UINT32_MAX);
	uint64_t unix_s = cgn_clock_wall_ms() / 1000;
	s->seasons_changed |= autoscale_season_note(&g->season, g->signals.load, unix_s);
	if (s->r->cfg->router.autoscaler.time_of_day)
		g->signals.expected =
			autoscale_season_expect(&g->season, unix_s, autoscale_lead(&cfg, g->signals.wake));
}

void scaler_seasons_write(struct scaler *s)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	if (!s->seasons_changed || s->seasons == NULL || statefile_is_busy(s->seasons))
		return;
	seasons_text(s, &text);
	s->seasons_changed = false;
	statefile_write(s->seasons, &text);
}

void scaler_seasons_close(struct scaler *s)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	if (s->seasons == NULL)
		return;
	if (s->seasons_changed)
		seasons_text(s, &text);
	statefile_close(&s->seasons, s->seasons_changed ? &text : NULL);
}
