/* SPDX-License-Identifier: Apache-2.0 */
/* view: lines of a screen. */
#include "ctl/top/view.h"

#include <stdlib.h>
#include <string.h>

#include "base/mix/mix.h"
#include "base/pb/pb_json.h"
#include "ctl/cluster/status.h"

static const struct {
	char key;
	const char *header;
	size_t width;
	bool number;
	const char *help;
} columns[TOP_COLUMNS] = {
#define COLUMN(id, key, header, width, number, help) {key, header, width, number, help},
#include "ctl/top/columns.def"
#undef COLUMN
};

#define TOP_SHOWN 16 /* Models of an engine */

/* A node as it is shown: the numbers that sort it, and its texts. */
struct node_line {
	const Cognitora__V1__NodeStatus *s;
	double v[TOP_COLUMNS];
	char text[TOP_COLUMNS][160];
};

static const Cognitora__V1__Node no_node = COGNITORA__V1__NODE__INIT;
static const Cognitora__V1__Load no_load = COGNITORA__V1__LOAD__INIT;

/* ---- rates ---- */

static uint64_t name_of(const Cognitora__V1__NodeStatus *s)
{
	const char *id = s->node != NULL ? s->node->id : "";
	return mix_fnv1a(MIX_FNV1A, id, strlen(id));
}

static struct top_rate *rate_find(struct top_rate *rates, size_t n, uint64_t name)
{
	for (size_t i = 0; i < n; i++)
		if (rates[i].name == name)
			return &rates[i];
	return NULL;
}

/* The order of nodes rarely changes between two statuses: look at the same place first. */
static const struct top_rate *rate_near(const struct top_view *v, size_t at, uint64_t name)
{
	if (at < v->n_rates && v->rates[at].name == name)
		return &v->rates[at];
	return rate_find((struct top_rate *)(uintptr_t)v->rates, v->n_rates, name);
}

void top_view_take(struct top_view *v, const Cognitora__V1__StatusResponse *s, cgn_nsec now)
{
	double seconds = v->at > 0 ? (double)cgn_since(now, v->at) / (double)CGN_SEC : 0;
	size_t n = s->n_nodes < TOP_NODES ? s->n_nodes : TOP_NODES;
	struct top_rate *fresh = CGN_NEW_ARRAY(struct top_rate, n);
	for (size_t i = 0; i < n; i++) {
		const Cognitora__V1__Load *load = s->nodes[i]->load != NULL ? s->nodes[i]->load : &no_load;
		const struct top_rate *old = rate_near(v, i, name_of(s->nodes[i]));
		fresh[i] = (struct top_rate){name_of(s->nodes[i]), load->requests_total, -1};
		/* A total that went back is that of an agent that was started again. */
		if (old != NULL && seconds > 0 && load->requests_total >= old->requests)
			fresh[i].per_second = (double)(load->requests_total - old->requests) / seconds;
	}
	memcpy(v->rates, fresh, n * sizeof *fresh);
	v->n_rates = n;
	v->at = now;
	free(fresh);
}

/* ---- a node ---- */

static void text_copy(char *to, size_t cap, const char *from)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	cgn_buf_shown(&b, cgn_str_of(from));
	(void)cgn_str_copyz(to, cap, cgn_buf_view(&b));
}

static void number_text(struct node_line *l, enum top_column c, int digits, double value, bool known)
{
	l->v[c] = known ? value : -1;
	if (known)
		(void)snprintf(l->text[c], sizeof l->text[c], "%.*f", digits, value);
}

static const char *state_of(const Cognitora__V1__NodeStatus *s)
{
	bool open = s->breaker[0] != '\0' && strncmp(s->breaker, "closed", 6) != 0;
	if (s->cordoned)
		return s->router_inflight > 0 ? "draining" : "cordoned";
	return strcmp(s->state, "ready") == 0 && open ? "open" : s->state;
}

static void line_fill(const struct top_view *v, const Cognitora__V1__NodeStatus *s, size_t at,
	struct node_line *l)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf models = {0};
	const Cognitora__V1__Node *node = s->node != NULL ? s->node : &no_node;
	const Cognitora__V1__Load *load = s->load != NULL ? s->load : &no_load;
	const struct top_rate *rate = rate_near(v, at, name_of(s));
	size_t cap = sizeof l->text[0];
	*l = (struct node_line){.s = s};
	ctl_status_models(node, TOP_SHOWN, &models);
	text_copy(l->text[TOP_NODE], cap, node->id);
	text_copy(l->text[TOP_STATE], cap, state_of(s));
	text_copy(l->text[TOP_MODELS], cap,
		s->reason[0] != '\0'   ? s->reason
			: models.n > 0 ? cgn_buf_z(&models)
				       : "");
	text_copy(l->text[TOP_ADDRESS], cap, node->address);
	number_text(l, TOP_INFLIGHT, 0, s->router_inflight, true);
	number_text(l, TOP_WAITING, 0, load->waiting, true);
	number_text(l, TOP_RATE, 1, rate != NULL ? rate->per_second : 0,
		rate != NULL && rate->per_second >= 0);
	number_text(l, TOP_KV, 0, 100 * (double)load->kv_usage, true);
	number_text(l, TOP_BLOCKS, 0, (double)s->index_blocks, true);
	number_text(l, TOP_WATTS, 0, (double)load->gpu_power_mw / 1e3, load->gpus > 0);
	number_text(l, TOP_MEMORY, 0,
		100 * (double)load->gpu_memory_used / (double)(load->gpu_memory_total + 1),
		load->gpu_memory_total > 0);
	number_text(l, TOP_TRUST, 2, (double)s->trust, true);
}

static bool line_has(const struct node_line *l, const char *text)
{
	for (size_t c = 0; c < TOP_COLUMNS; c++)
		if (strcasestr(l->text[c], text) != NULL)
			return true;
	return text[0] == '\0';
}

static int by_column(const void *a, const void *b, void *user)
{
	const struct top_view *v = user;
	const struct node_line *x = a, *y = b;
	enum top_column c = v->sorted;
	int order = columns[c].number ? (x->v[c] < y->v[c]) - (x->v[c] > y->v[c])
				      : strcmp(x->text[c], y->text[c]);
	if (order == 0)
		return strcmp(x->text[TOP_NODE], y->text[TOP_NODE]);
	return v->reversed ? -order : order;
}

/* Return the nodes that the filter lets through, sorted: numbers from the largest, texts from A. */
static struct node_line *lines_make(const struct top_view *v, const Cognitora__V1__StatusResponse *s,
	size_t *n)
{
	struct node_line *lines = CGN_NEW_ARRAY(struct node_line, s->n_nodes);
	*n = 0;
	for (size_t i = 0; i < s->n_nodes; i++) {
		line_fill(v, s->nodes[i], i, &lines[*n]);
		*n += line_has(&lines[*n], v->filter);
	}
	qsort_r(lines, *n, sizeof *lines, by_column, (void *)(uintptr_t)v);
	return lines;
}

/* ---- text ---- */

static size_t characters_in(struct cgn_str s)
{
	size_t n = 0;
	for (size_t i = 0; i < s.n; i++)
		n += ((unsigned char)s.p[i] & 0xc0) != 0x80;
	return n;
}

/* Append at most |width| characters of |s|; "…" takes the place of the rest. */
static void put_cut(struct cgn_buf *out, struct cgn_str s, size_t width)
{
	size_t end = 0;
	if (characters_in(s) <= width) {
		cgn_buf_add(out, s.p, s.n);
		return;
	}
	if (width == 0)
		return;
	for (size_t n = 0; end < s.n; end++)
		if (((unsigned char)s.p[end] & 0xc0) != 0x80 && ++n == width)
			break;
	cgn_buf_add(out, s.p, end);
	cgn_buf_putz(out, "…");
}

static void put_line(const struct top_view *v, struct cgn_buf *line, const char *end, struct cgn_buf *out)
{
	put_cut(out, cgn_buf_view(line), v->width);
	cgn_buf_putz(out, end);
	line->n = 0;
}

/* The columns that fit, and their widths: the rest of the screen goes to the models, then to the node's id. */
static size_t columns_fit(const struct top_view *v, const struct node_line *lines, size_t n,
	size_t width[TOP_COLUMNS])
{
	size_t used = 0, shown = 0;
	for (; shown < TOP_COLUMNS; shown++) {
		size_t more = columns[shown].width + (shown > 0 ? 1 : 0);
		if (used + more > v->width)
			break;
		width[shown] = columns[shown].width;
		used += more;
	}
	static const enum top_column grow[] = {TOP_NODE, TOP_MODELS, TOP_ADDRESS, TOP_STATE};
	for (size_t g = 0; g < CGN_COUNT(grow); g++) {
		size_t longest = 0, c = grow[g];
		for (size_t i = 0; c < shown && i < n; i++) {
			size_t k = characters_in(cgn_str_of(lines[i].text[c]));
			longest = k > longest ? k : longest;
		}
		while (c < shown && width[c] < longest && used < v->width) {
			width[c]++;
			used++;
		}
	}
	return shown;
}

static void put_cell(struct cgn_buf *out, const char *text, size_t width, bool right, bool last)
{
	size_t n = characters_in(cgn_str_of(text)), gap = n < width ? width - n : 0;
	if (right)
		cgn_buf_fmt(out, "%*s", (int)gap, "");
	put_cut(out, cgn_str_of(text), width);
	if (!right && !last)
		cgn_buf_fmt(out, "%*s", (int)gap, "");
}

static const char *colour_of(const struct top_view *v, const struct node_line *l)
{
	const char *state = l->text[TOP_STATE];
	if (!v->colour || strcmp(state, "ready") == 0)
		return "";
	return strcmp(state, "cordoned") == 0 || strcmp(state, "draining") == 0 ? "\033[33m" : "\033[31m";
}

static void put_header(const struct top_view *v, const size_t *width, size_t shown, const char *end,
	struct cgn_buf *out)
{
	cgn_buf_putz(out, v->colour ? "\033[7m" : "");
	for (size_t c = 0; c < shown; c++) {
		char text[32];
		(void)snprintf(text, sizeof text, "%s%s", c == v->sorted ? (v->reversed ? "<" : ">") : "",
			columns[c].header);
		cgn_buf_putz(out, c > 0 ? " " : "");
		put_cell(out, text, width[c], columns[c].number, c + 1 == shown);
	}
	cgn_buf_putz(out, v->colour ? "\033[0m" : "");
	cgn_buf_putz(out, end);
}

static void put_node(const struct top_view *v, const struct node_line *l, const size_t *width, size_t shown,
	const char *end, struct cgn_buf *out)
{
	const char *colour = colour_of(v, l);
	cgn_buf_putz(out, colour);
	for (size_t c = 0; c < shown; c++) {
		cgn_buf_putz(out, c > 0 ? " " : "");
		put_cell(out, l->text[c], width[c], columns[c].number, c + 1 == shown);
	}
	cgn_buf_putz(out, colour[0] != '\0' ? "\033[0m" : "");
	cgn_buf_putz(out, end);
}

/* ---- the lines above the nodes ---- */

static void head_lines(const struct top_view *v, const Cognitora__V1__StatusResponse *s, const char *end,
	struct cgn_buf *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf line = {0};
	const Cognitora__V1__TrafficStatus *t = s->traffic;
	double watts = 0;
	uint32_t queued = 0;
	for (size_t i = 0; i < s->n_nodes; i++)
		watts += s->nodes[i]->load != NULL ? (double)s->nodes[i]->load->gpu_power_mw / 1e3 : 0;
	for (size_t i = 0; i < s->n_model_status; i++)
		queued += s->model_status[i]->queued;
	cgn_buf_shown(&line, cgn_str_of(s->cluster));
	cgn_buf_fmt(&line, "  %s  %zu of %zu nodes ready  up %llu s%s%s", v->clock,
		ctl_status_nodes_in(s, "ready"), s->n_nodes, (unsigned long long)(s->uptime_ms / 1000),
		s->state_connected ? "" : "  STATE BACKEND UNREACHABLE", s->state_stale ? "  STALE" : "");
	put_line(v, &line, end, out);
	if (t != NULL && t->requests > 0) {
		cgn_buf_fmt(&line, "%.1f req/s  ", t->requests_per_second);
		if (t->failed > 0 || t->refused > 0)
			cgn_buf_fmt(&line, "%llu failed, %llu refused  ", (unsigned long long)t->failed,
				(unsigned long long)t->refused);
		if (t->prompt_tokens > 0)
			cgn_buf_fmt(&line, "hit %.0f %%  ",
				100 * (double)t->cached_tokens / (double)t->prompt_tokens);
		cgn_buf_fmt(&line, "TTFT p50 %.0f ms, p95 %.0f ms  ", t->ttft_p50_ms, t->ttft_p95_ms);
	} else {
		cgn_buf_putz(&line, "no request in the last minute  ");
	}
	cgn_buf_fmt(&line, "%u waiting", queued);
	if (watts > 0)
		cgn_buf_fmt(&line, "  %.0f W", watts);
	put_line(v, &line, end, out);
}

static void help_lines(const struct top_view *v, const char *end, struct cgn_buf *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf line = {0};
	static const char *const keys[] =
		{"arrows, PgUp, PgDn  scroll; left and right choose the column that sorts",
			"R  reverse the order", "/  show only nodes whose line has a text; Escape ends it",
			"q  quit"};
	for (size_t i = 0; i < CGN_COUNT(keys); i++) {
		cgn_buf_putz(&line, keys[i]);
		put_line(v, &line, end, out);
	}
	for (size_t c = 0; c < TOP_COLUMNS; c++) {
		cgn_buf_fmt(&line, "%c  sort by %s: %s", columns[c].key, columns[c].header, columns[c].help);
		put_line(v, &line, end, out);
	}
}

static void last_line(const struct top_view *v, size_t shown, size_t all, struct cgn_buf *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf line = {0};
	if (v->filtering)
		cgn_buf_fmt(&line, "/%s_", v->filter);
	else if (v->trouble != NULL)
		cgn_buf_fmt(&line, "%s", v->trouble);
	else
		cgn_buf_fmt(&line, "q quit  ? help  / filter%s%s  sorted by %s  %zu to %zu of %zu",
			v->filter[0] != '\0' ? ": " : "", v->filter, columns[v->sorted].header,
			all > 0 ? v->first + 1 : 0, v->first + shown, all);
	put_line(v, &line, "", out);
}

static void nodes_write(struct top_view *v, const Cognitora__V1__StatusResponse *s, const char *end,
	struct cgn_buf *out)
{
	size_t n, width[TOP_COLUMNS];
	struct node_line *lines = lines_make(v, s, &n);
	size_t above = 4, room = v->height == 0 ? n : v->height > above ? v->height - above : 1;
	if (v->first + room > n)
		v->first = n > room ? n - room : 0;
	size_t count = n - v->first < room ? n - v->first : room;
	size_t shown = columns_fit(v, lines + v->first, count, width);
	put_header(v, width, shown, end, out);
	for (size_t i = 0; i < count; i++)
		put_node(v, &lines[v->first + i], width, shown, end, out);
	if (v->keys) {
		for (size_t i = count; i < room; i++)
			cgn_buf_putz(out, end);
		last_line(v, count, n, out);
	}
	free(lines);
}

void top_view_write(struct top_view *v, const Cognitora__V1__StatusResponse *s, const char *end,
	struct cgn_buf *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf line = {0};
	if (v->help) {
		help_lines(v, end, out);
	} else if (s == NULL) {
		cgn_buf_putz(&line, v->trouble != NULL ? v->trouble : "waiting for the router");
		put_line(v, &line, end, out);
	} else {
		head_lines(v, s, end, out);
		nodes_write(v, s, end, out);
	}
}

void top_view_json(const struct top_view *v, const Cognitora__V1__StatusResponse *s, struct cgn_buf *out)
{
	size_t n;
	struct node_line *lines = lines_make(v, s, &n);
	struct json_out j = json_out_to(out);
	json_open(&j, '{');
	pb_json_members(&j, s, "cluster uptime_ms traffic");
	json_key_open(&j, "nodes", '[');
	for (size_t i = 0; i < n; i++) {
		json_open(&j, '{');
		json_key_z(&j, "node", lines[i].text[TOP_NODE]);
		json_key_z(&j, "state", lines[i].text[TOP_STATE]);
		json_key_f64(&j, "inflight", lines[i].v[TOP_INFLIGHT]);
		json_key_f64(&j, "waiting", lines[i].v[TOP_WAITING]);
		json_key(&j, "requests_per_second");
		if (lines[i].v[TOP_RATE] >= 0)
			json_put_f64(&j, lines[i].v[TOP_RATE]);
		else
			json_put_null(&j);
		json_key_f64(&j, "kv_percent", lines[i].v[TOP_KV]);
		json_key_f64(&j, "blocks", lines[i].v[TOP_BLOCKS]);
		json_close(&j, '}');
	}
	json_close(&j, ']');
	json_close(&j, '}');
	cgn_buf_char(out, '\n');
	free(lines);
}

/* ---- keys ---- */

static void filter_key(struct top_view *v, int key)
{
	size_t n = strlen(v->filter);
	if (key == '\r' || key == '\n' || key == 27) {
		v->filtering = false;
		if (key == 27)
			v->filter[0] = '\0';
	} else if ((key == 127 || key == 8) && n > 0) {
		v->filter[n - 1] = '\0';
	} else if (key >= ' ' && key < 127 && n + 1 < sizeof v->filter) {
		v->filter[n] = (char)key;
		v->filter[n + 1] = '\0';
	}
	v->first = 0;
}

static void list_scroll(struct top_view *v, size_t up, size_t down)
{
	v->first = v->first > up ? v->first - up : 0;
	v->first += down; /* top_view_write keeps it within the list. */
}

static void sort_by(struct top_view *v, size_t c)
{
	v->sorted = (enum top_column)c;
	v->first = 0;
}

bool top_view_key(struct top_view *v, int key)
{
	size_t page = v->height > 5 ? v->height - 5 : 1;
	if (v->filtering) {
		filter_key(v, key);
		return true;
	}
	if (v->help && key != 'q') {
		v->help = false;
		return true;
	}
	for (size_t c = 0; c < TOP_COLUMNS; c++)
		if (key == columns[c].key)
			sort_by(v, c);
	switch (key) {
	case 'q':
		return false;
	case '?':
	case 'h':
		v->help = true;
		break;
	case 'R':
		v->reversed = !v->reversed;
		break;
	case '/':
		v->filtering = true;
		break;
	case 27:
		v->filter[0] = '\0';
		break;
	case TOP_KEY_UP:
		list_scroll(v, 1, 0);
		break;
	case TOP_KEY_DOWN:
		list_scroll(v, 0, 1);
		break;
	case TOP_KEY_PAGE_UP:
		list_scroll(v, page, 0);
		break;
	case TOP_KEY_PAGE_DOWN:
		list_scroll(v, 0, page);
		break;
	case TOP_KEY_LEFT:
		sort_by(v, (v->sorted + TOP_COLUMNS - 1) % TOP_COLUMNS);
		break;
	case TOP_KEY_RIGHT:
		sort_by(v, (v->sorted + 1) % TOP_COLUMNS);
		break;
	default:
		break;
	}
	return true;
}
