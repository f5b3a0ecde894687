/* SPDX-License-Identifier: Apache-2.0 */
/* scale: what the autoscaler knows and decided. */
#include <time.h>

#include "base/json/json.h"
#include "base/pb/pb.h"
#include "cognitora/v1/control.pb-c.h"
#include "ctl/client.h"
#include "ctl/ctl.h"

#define DEFAULT_TIMEOUT (10 * CGN_SEC)

struct scale_column {
	const char *key, *header;
	bool right;
};

static const struct scale_column models[] = {{"model", "MODEL", false}, {"role", "ROLE", false},
	{"ready", "READY", true}, {"coming", "COMING", true}, {"want", "WANT", true}, {"load", "LOAD", true},
	{"forecast", "FORECAST", true}, {"inflight", "INFLIGHT", true}, {"waiting", "WAITING", true},
	{"ttft_p90_ms", "TTFT P90 MS", true}, {"itl_p90_ms", "ITL P90 MS", true},
	{"wake_seconds", "WAKE S", true}, {"why", "WHY", false}};
static const struct scale_column decisions[] = {{"at_unix_ms", "TIME", false}, {"model", "MODEL", false},
	{"role", "ROLE", false}, {"action", "ACTION", false}, {"by", "BY", true}, {"have", "HAVE", true},
	{"want", "WANT", true}, {"nodes", "NODES", false}, {"why", "WHY", false}, {"then", "THEN", false}};

static void time_cell(struct ctl_table *t, struct json_val v)
{
	uint64_t ms = 0;
	char text[32] = "-";
	struct tm parts;
	if (json_u64(v, &ms)) {
		time_t s = (time_t)(ms / 1000);
		if (gmtime_r(&s, &parts) != NULL)
			(void)strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
	}
	ctl_table_cell(t, "%s", text);
}

static void scale_cell(struct ctl_table *t, struct json_val row, const struct scale_column *c)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct json_val v;
	double number;
	bool has = json_get(row, c->key, &v);
	if (has && strcmp(c->key, "at_unix_ms") == 0) {
		time_cell(t, v);
		return;
	}
	if (has && v.type == JSON_STRING)
		json_str_to(v, &text);
	else if (has && json_f64(v, &number))
		cgn_buf_fmt(&text, "%.4g", number);
	ctl_table_cell(t, "%s", text.n > 0 ? cgn_buf_z(&text) : "-");
}

static CGN_RC list_show(struct json_val doc, const char *key, const struct scale_column *columns, size_t n,
	struct cgn_err *err)
{
	struct ctl_table t = {0};
	struct json_val list, row;
	if (!json_get(doc, key, &list))
		return CGN_FAIL(err, BAD_GATEWAY, "the router's answer has no \"%s\"", key);
	for (size_t i = 0; i < n; i++)
		ctl_table_column(&t, columns[i].header, columns[i].right);
	struct json_iter it = json_iter_of(list);
	while (json_next_elem(&it, &row))
		for (size_t i = 0; i < n; i++)
			scale_cell(&t, row, &columns[i]);
	return ctl_table_print(&t, false, err);
}

static CGN_RC scale_show(struct cgn_str text, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf mode = {0};
	struct json_val doc = {.raw = {NULL, 0}}, v;
	CGN_TRY(json_parse(text, &doc, NULL, err));
	if (json_get(doc, "mode", &v))
		json_str_to(v, &mode);
	(void)printf("router.autoscaler: %s\n", mode.n > 0 ? cgn_buf_z(&mode) : "unknown");
	CGN_TRY(list_show(doc, "models", models, CGN_COUNT(models), err));
	(void)printf("\nlast decisions, newest first (UTC)\n");
	return list_show(doc, "decisions", decisions, CGN_COUNT(decisions), err);
}

CGN_RC ctl_cluster_scale(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) Cognitora__V1__ScaleResponse *rs = NULL;
	Cognitora__V1__ScaleRequest rq = COGNITORA__V1__SCALE_REQUEST__INIT;
	struct ctl_call call = {.method = "Scale",
		.answer = &cognitora__v1__scale_response__descriptor,
		.request = &rq,
		.first = &rs};
	CGN_TRY(ctl_timeout(a, DEFAULT_TIMEOUT, &call.timeout, err));
	CGN_TRY(ctl_client_call(a, CTL_ROUTER, &call, err));
	struct cgn_buf out = {0};
	cgn_buf_fmt(&out, "%s\n", rs->json);
	cgn_rc rc = a->json ? ctl_print(&out, err) : scale_show(cgn_str_of(rs->json), err);
	cgn_buf_fini(&out);
	return rc;
}
