/* SPDX-License-Identifier: Apache-2.0 */
/* svc: the command line of a daemon. */
#include "joint/svc/svc_priv.h"

#define ARGS_MAX_BYTES ((size_t)1 << 20)

static const struct option {
	const char *name, *meta, *help;
} options[] = {
	{"config", "FILE", "configuration; else $CGN_CONFIG, else " SVC_DEFAULT_CONFIG " if it exists"},
	{"set", "KEY=VALUE", "one setting, as in --set log.level=debug; may be repeated"},
	{"check", NULL, "check the configuration, print it with the origin of each value, and exit"},
	{"version", NULL, "print the version and exit"},
	{"help", NULL, "print this and exit"},
};

static const struct svc_flag *flag_of(const struct svc_program *p, struct cgn_str name)
{
	for (size_t i = 0; i < p->n_flags; i++)
		if (cgn_str_is(name, p->flags[i].flag))
			return &p->flags[i];
	return NULL;
}

static const struct option *option_of(struct cgn_str name)
{
	for (size_t i = 0; i < CGN_COUNT(options); i++)
		if (cgn_str_is(name, options[i].name))
			return &options[i];
	return NULL;
}

static cgn_rc fail_unknown(const struct svc_program *p, struct cgn_str name, struct cgn_err *err)
{
	const char *near = NULL;
	size_t least = 4;
	for (size_t i = 0; i < CGN_COUNT(options) + p->n_flags; i++) {
		const char *known =
			i < CGN_COUNT(options) ? options[i].name : p->flags[i - CGN_COUNT(options)].flag;
		size_t d = cgn_str_distance(name, cgn_str_of(known), least);
		if (d < least) {
			least = d;
			near = known;
		}
	}
	if (near != NULL)
		return CGN_FAIL(err, INVALID, "unknown option --%.60s; did you mean --%s?", name.p, near);
	return CGN_FAIL(err, INVALID, "unknown option --%.60s; %s --help lists them", name.p, p->name);
}

static cgn_rc add_flag(struct svc_args *args, const char *text, struct cgn_err *err)
{
	if (text == NULL)
		return CGN_FAIL(err, NO_MEMORY, "the command line is too long");
	args->flags[args->n_flags++] = text;
	return CGN_OK;
}

static cgn_rc take_option(struct svc_args *args, const struct option *o, const char *value,
	struct cgn_err *err)
{
	if (strcmp(o->name, "config") == 0)
		args->config_file = value;
	else if (strcmp(o->name, "set") == 0)
		return add_flag(args, value, err);
	else if (strcmp(o->name, "help") == 0 || args->mode == SVC_HELP)
		args->mode = SVC_HELP;
	else
		args->mode = strcmp(o->name, "check") == 0 ? SVC_CHECK : SVC_VERSION;
	return CGN_OK;
}

/* One "--name", "--name=value" or "--name value"; |*at| moves behind what was used. */
static cgn_rc take_one(const struct svc_program *p, int argc, char **argv, int *at, struct svc_args *args,
	struct cgn_err *err)
{
	const char *arg = argv[(*at)++];
	if (strcmp(arg, "-h") == 0)
		arg = "--help";
	if (arg[0] != '-' || arg[1] != '-' || arg[2] == '\0')
		return CGN_FAIL(err, INVALID, "unexpected argument \"%.60s\"; %s --help lists the options",
			arg, p->name);
	struct cgn_str rest = cgn_str_of(arg + 2), name = cgn_str_split(&rest, '=');
	const struct svc_flag *f = flag_of(p, name);
	const struct option *o = f == NULL ? option_of(name) : NULL;
	if (f == NULL && o == NULL)
		return fail_unknown(p, name, err);
	const char *meta = f != NULL ? f->meta : o->meta, *value = rest.p;
	if (meta == NULL && value != NULL)
		return CGN_FAIL(err, INVALID, "option --%.*s takes no value", CGN_STR_ARG(name));
	if (meta != NULL && value == NULL) {
		if (*at == argc)
			return CGN_FAIL(err, INVALID, "option --%.*s needs a value: --%.*s %s",
				CGN_STR_ARG(name), CGN_STR_ARG(name), meta);
		value = argv[(*at)++];
	}
	if (f != NULL)
		return add_flag(args,
			cgn_arena_fmt(&args->arena, "%s=%s", f->key, value != NULL ? value : "true"), err);
	return take_option(args, o, value, err);
}

CGN_RC svc_args_parse(const struct svc_program *p, int argc, char **argv, struct svc_args *args,
	struct cgn_err *err)
{
	cgn_arena_init(&args->arena, ARGS_MAX_BYTES);
	args->flags = cgn_arena_zero(&args->arena, (size_t)(argc + 1) * sizeof *args->flags);
	if (args->flags == NULL)
		return CGN_FAIL(err, NO_MEMORY, "the command line is too long");
	for (int at = 1; at < argc;)
		CGN_TRY(take_one(p, argc, argv, &at, args, err));
	return CGN_OK;
}

void svc_args_fini(struct svc_args *args)
{
	cgn_arena_fini(&args->arena);
	*args = (struct svc_args){0};
}

static void put_option(struct cgn_buf *out, const char *name, const char *meta, const char *help)
{
	size_t start = out->n;
	cgn_buf_fmt(out, "  --%s %s", name, meta != NULL ? meta : "");
	size_t width = out->n - start;
	cgn_buf_fmt(out, "%*s%s\n", width < 28 ? (int)(28 - width) : 1, "", help);
}

void svc_help(const struct svc_program *p, struct cgn_buf *out)
{
	cgn_buf_fmt(out, "%s: %s\n\nusage: %s [options]\n\n", p->name, p->summary, p->name);
	for (size_t i = 0; i < p->n_flags; i++)
		put_option(out, p->flags[i].flag, p->flags[i].meta, p->flags[i].help);
	for (size_t i = 0; i < CGN_COUNT(options); i++)
		put_option(out, options[i].name, options[i].meta, options[i].help);
	if (p->examples != NULL)
		cgn_buf_fmt(out, "\nexamples:\n%s%s", p->examples,
			p->examples[strlen(p->examples) - 1] == '\n' ? "" : "\n");
	cgn_buf_putz(out, "\nAll settings: docs/reference/configuration.md\n");
}
