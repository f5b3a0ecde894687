/* SPDX-License-Identifier: Apache-2.0 */
/* svc: the command line of a daemon. */
#include "base/args/args.h"
#include "joint/daemon/svc/svc_priv.h"

#define ARGS_MAX_BYTES ((size_t)1 << 20)

static const struct option {
	const char *name, *meta, *help;
} options[] = {
	{"config", "FILE",
		"configuration file; default: $CGN_CONFIG, else " SVC_DEFAULT_CONFIG " if it exists"},
	{"set", "KEY=VALUE", "set one setting, for example --set log.level=debug; repeatable"},
	{"check", NULL, "check the configuration, print each value with its origin, and exit"},
	{"probe", "ready|alive",
		"ask the running program at the admin address of these settings whether it is, and exit with 0 or 1: for health checks of containers"},
	{"version", NULL, "print the version and exit"},
	{"help", NULL, "print this help and exit"},
};

/* Return the row of a flag: the program's own flags come first, then the flags of every daemon. */
static struct args_flag row_at(const void *program, size_t i)
{
	const struct svc_program *p = program;
	if (i < p->n_flags)
		return (struct args_flag){p->flags[i].flag, p->flags[i].meta};
	if (i - p->n_flags >= CGN_COUNT(options))
		return (struct args_flag){p->print.flag, NULL};
	return (struct args_flag){options[i - p->n_flags].name, options[i - p->n_flags].meta};
}

static cgn_rc add_flag(struct svc_args *args, const char *text, struct cgn_err *err)
{
	if (text == NULL)
		return CGN_FAIL(err, NO_MEMORY, "the command line is too long");
	args->flags[args->n_flags++] = text;
	return CGN_OK;
}

static cgn_rc take_probe(struct svc_args *args, const char *value, struct cgn_err *err)
{
	if (strcmp(value, "ready") != 0 && strcmp(value, "alive") != 0)
		return CGN_FAIL(err, INVALID, "--probe takes ready or alive, not '%.100s'", value);
	args->mode = SVC_PROBE;
	args->probe = value;
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
	else if (strcmp(o->name, "probe") == 0)
		return take_probe(args, value, err);
	else
		args->mode = strcmp(o->name, "check") == 0 ? SVC_CHECK : SVC_VERSION;
	return CGN_OK;
}

CGN_RC svc_args_parse(const struct svc_program *p, int argc, char **argv, struct svc_args *args,
	struct cgn_err *err)
{
	struct args line = {.argc = argc, .argv = argv, .at = 1};
	const struct args_table table = {.program = p->name,
		.n_rows = p->n_flags + CGN_COUNT(options) + (p->print.flag != NULL),
		.row = row_at,
		.user = p};
	cgn_arena_init(&args->arena, ARGS_MAX_BYTES);
	args->flags = cgn_arena_zero(&args->arena, (size_t)(argc + 1) * sizeof *args->flags);
	if (args->flags == NULL)
		return CGN_FAIL(err, NO_MEMORY, "the command line is too long");
	while (!args_end(&line)) {
		struct args_given given;
		CGN_TRY(args_take(&line, &table, &given, err));
		if (given.row >= p->n_flags + CGN_COUNT(options))
			args->mode = args->mode == SVC_HELP ? SVC_HELP : SVC_PRINT;
		else if (given.row >= p->n_flags)
			CGN_TRY(take_option(args, &options[given.row - p->n_flags], given.value, err));
		else
			CGN_TRY(add_flag(args,
				cgn_arena_fmt(&args->arena, "%s=%s", p->flags[given.row].key,
					given.value != NULL ? given.value : "true"),
				err));
	}
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
	if (p->print.flag != NULL)
		put_option(out, p->print.flag, NULL, p->print.help);
	if (p->examples != NULL)
		cgn_buf_fmt(out, "\nexamples:\n%s%s", p->examples,
			p->examples[strlen(p->examples) - 1] == '\n' ? "" : "\n");
	cgn_buf_putz(out, "\nAll settings: docs/reference/configuration.md\n");
}
