/* SPDX-License-Identifier: Apache-2.0 */
/* completion: scripts for bash, zsh and fish, made from verbs.def and flags.def. Each shell gets a script of its
 * own: zsh's emulation of bash's completion lacks what the bash script needs. */
#include <string.h>

#include "ctl/ctl.h"

/* Append the second words of the group |first|, each after a space; for NULL each first word once. The verbs of
 * a group are consecutive in the table. */
static void next_words(const char *first, struct cgn_buf *out)
{
	struct cgn_str last = {NULL, 0};
	for (size_t i = 0; i < ctl_n_verbs; i++) {
		struct cgn_str rest = cgn_str_of(ctl_verbs[i].path), head = cgn_str_split(&rest, ' ');
		if (first != NULL && cgn_str_is(head, first) && rest.p != NULL)
			cgn_buf_fmt(out, " %.*s", CGN_STR_ARG(rest));
		if (first == NULL && !cgn_str_eq(head, last))
			cgn_buf_fmt(out, " %.*s", CGN_STR_ARG(head));
		last = head;
	}
}

/* Call |put| for each group once, in the order of the table. */
static void each_group(void (*put)(const char *group, struct cgn_buf *out), struct cgn_buf *out)
{
	char group[32] = "";
	for (size_t i = 0; i < ctl_n_verbs; i++) {
		struct cgn_str rest = cgn_str_of(ctl_verbs[i].path), first = cgn_str_split(&rest, ' ');
		if (rest.p == NULL || cgn_str_is(first, group))
			continue;
		(void)cgn_str_copyz(group, sizeof group, first);
		put(group, out);
	}
}

/* Append |z| between single quotes; |escape| stands for a quote inside. */
static void put_single_quoted(struct cgn_buf *out, const char *z, const char *escape)
{
	cgn_buf_char(out, '\'');
	for (; *z != '\0'; z++)
		if (*z == '\'')
			cgn_buf_putz(out, escape);
		else
			cgn_buf_char(out, *z);
	cgn_buf_char(out, '\'');
}

enum value_kind { VALUE_NONE, VALUE_FILE, VALUE_CHOICE, VALUE_CONTEXT, VALUE_OTHER };

/* Say how the value of a flag, or an argument, is completed by its name in the help. */
static enum value_kind value_kind_of(const char *meta)
{
	static const char *const files[] = {"FILE", "DIR", "PATH", "FILE...", "PROGRAM", "[TRACE]"};
	if (meta == NULL)
		return VALUE_NONE;
	for (size_t i = 0; i < CGN_COUNT(files); i++)
		if (strcmp(meta, files[i]) == 0)
			return VALUE_FILE;
	if (strcmp(meta, "CONTEXT") == 0 || strcmp(meta, "[CONTEXT]") == 0)
		return VALUE_CONTEXT;
	return strchr(meta, '|') != NULL && meta[0] >= 'a' ? VALUE_CHOICE : VALUE_OTHER;
}

/* Append the choices of "table|wide|json", each after a space. */
static void put_choices(const char *meta, struct cgn_buf *out)
{
	struct cgn_str rest = cgn_str_of(meta);
	while (rest.p != NULL) {
		struct cgn_str word = cgn_str_split(&rest, '|');
		cgn_buf_fmt(out, " %.*s", CGN_STR_ARG(word));
	}
}

static bool takes_recipe(const struct ctl_verb *v)
{
	return strstr(v->arguments, "RECIPE") != NULL;
}

/* Print the names of the recipes or contexts: the first column of a table. */
#define LIST_RECIPES  "cgn-ctl recipe ls 2>/dev/null | awk 'NR > 1 { print $1 }'"
#define LIST_CONTEXTS "cgn-ctl context ls 2>/dev/null | awk 'NR > 1 { print $1 }'"

/* ---- bash ---- */

static void bash_group(const char *group, struct cgn_buf *out)
{
	struct cgn_buf seconds = {0};
	next_words(group, &seconds);
	cgn_buf_fmt(out, "\t\"%s\") words=\"%s\" ;;\n", group, cgn_buf_z(&seconds) + 1);
	cgn_buf_fini(&seconds);
}

static void bash_verb(const struct ctl_verb *v, struct cgn_buf *out)
{
	cgn_buf_fmt(out, "\t\"%s\"*) words=\"", v->path);
	for (size_t i = 0; i < ctl_n_flags; i++)
		if (ctl_flag_fits(&ctl_flags[i], v))
			cgn_buf_fmt(out, "%s ", ctl_flags[i].name);
	if (takes_recipe(v))
		cgn_buf_putz(out, "$(" LIST_RECIPES ") ");
	if (value_kind_of(v->arguments) == VALUE_CONTEXT)
		cgn_buf_putz(out, "$(" LIST_CONTEXTS ") ");
	if (value_kind_of(v->arguments) == VALUE_CHOICE)
		put_choices(v->arguments, out);
	cgn_buf_putz(out, "\" ;;\n");
}

/* Append a case for each flag whose value has choices. Flags of equal names have equal choices. */
static void bash_values(struct cgn_buf *out)
{
	for (size_t i = 0; i < ctl_n_flags; i++) {
		enum value_kind kind = value_kind_of(ctl_flags[i].meta);
		if (kind == VALUE_CHOICE) {
			cgn_buf_fmt(out, "\t\"%s\") words=\"", ctl_flags[i].name);
			put_choices(ctl_flags[i].meta, out);
			cgn_buf_putz(out, "\" ;;\n");
		} else if (kind == VALUE_CONTEXT) {
			cgn_buf_fmt(out, "\t\"%s\") words=\"$(" LIST_CONTEXTS ")\" ;;\n", ctl_flags[i].name);
		} else if (kind != VALUE_NONE) {
			cgn_buf_fmt(out, "\t\"%s\") return ;;\n", ctl_flags[i].name);
		}
	}
}

/* Where nothing is offered, bash completes names of files. */
static void complete_bash(struct cgn_buf *out)
{
	cgn_buf_putz(out,
		"_cgn_ctl() {\n\tlocal cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\" words=\"\"\n"
		"\tlocal line=\"${COMP_WORDS[*]:1:COMP_CWORD-1}\"\n\tCOMPREPLY=()\n\tcase \"$line\" in\n\t\"\") words=\"");
	next_words(NULL, out);
	cgn_buf_putz(out, "\" ;;\n");
	each_group(bash_group, out);
	for (size_t i = 0; i < ctl_n_verbs; i++)
		bash_verb(&ctl_verbs[i], out);
	cgn_buf_putz(out, "\tesac\n\tcase \"$prev\" in\n");
	bash_values(out);
	cgn_buf_putz(out,
		"\tesac\n\tmapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n}\n"
		"complete -o default -F _cgn_ctl cgn-ctl\n");
}

/* ---- zsh ---- */

/* Append 'NAME:HELP' as _describe takes it. */
static void zsh_item(struct cgn_buf *out, struct cgn_str name, const char *help)
{
	struct cgn_buf item = {0};
	cgn_buf_fmt(&item, "%.*s:%s", CGN_STR_ARG(name), help);
	cgn_buf_char(out, ' ');
	put_single_quoted(out, cgn_buf_z(&item), "'\\''");
	cgn_buf_fini(&item);
}

static void zsh_group(const char *group, struct cgn_buf *out)
{
	cgn_buf_fmt(out, "\t\"%s\") items=(", group);
	for (size_t i = 0; i < ctl_n_verbs; i++) {
		struct cgn_str rest = cgn_str_of(ctl_verbs[i].path), first = cgn_str_split(&rest, ' ');
		if (cgn_str_is(first, group) && rest.p != NULL)
			zsh_item(out, rest, ctl_verbs[i].summary);
	}
	cgn_buf_putz(out, ") ;;\n");
}

static void zsh_verb(const struct ctl_verb *v, struct cgn_buf *out)
{
	enum value_kind kind = value_kind_of(v->arguments);
	cgn_buf_fmt(out, "\t\"%s\"|\"%s \"*) items=(", v->path, v->path);
	for (size_t i = 0; i < ctl_n_flags; i++)
		if (ctl_flag_fits(&ctl_flags[i], v))
			zsh_item(out, cgn_str_of(ctl_flags[i].name), ctl_flags[i].help);
	cgn_buf_putz(out, ")");
	if (kind == VALUE_FILE)
		cgn_buf_putz(out, "; files=1");
	if (kind == VALUE_CONTEXT)
		cgn_buf_putz(out, "; plain=($(" LIST_CONTEXTS "))");
	if (takes_recipe(v))
		cgn_buf_putz(out, "; plain=($(" LIST_RECIPES "))");
	if (kind == VALUE_CHOICE) {
		cgn_buf_putz(out, "; plain=(");
		put_choices(v->arguments, out);
		cgn_buf_putz(out, ")");
	}
	cgn_buf_putz(out, " ;;\n");
}

static void zsh_values(struct cgn_buf *out)
{
	for (size_t i = 0; i < ctl_n_flags; i++) {
		enum value_kind kind = value_kind_of(ctl_flags[i].meta);
		if (kind == VALUE_NONE)
			continue;
		cgn_buf_fmt(out, "\t\"%s\") ", ctl_flags[i].name);
		if (kind == VALUE_CHOICE) {
			cgn_buf_putz(out, "compadd --");
			put_choices(ctl_flags[i].meta, out);
		} else {
			cgn_buf_putz(out,
				kind == VALUE_FILE              ? "_files"
					: kind == VALUE_CONTEXT ? "compadd -- $(" LIST_CONTEXTS ")"
								: "_message value");
		}
		cgn_buf_putz(out, "; return ;;\n");
	}
}

/* The script works both as a file _cgn-ctl in $fpath and when it is sourced. */
static void complete_zsh(struct cgn_buf *out)
{
	cgn_buf_putz(out,
		"#compdef cgn-ctl\n_cgn_ctl() {\n\tlocal line=\"${(j: :)words[2,CURRENT-1]}\" files\n\tlocal -a items plain\n"
		"\tcase \"${words[CURRENT-1]}\" in\n");
	zsh_values(out);
	cgn_buf_putz(out, "\tesac\n\tcase \"$line\" in\n\t\"\") plain=(");
	next_words(NULL, out);
	cgn_buf_putz(out, ") ;;\n");
	each_group(zsh_group, out);
	for (size_t i = 0; i < ctl_n_verbs; i++)
		zsh_verb(&ctl_verbs[i], out);
	cgn_buf_putz(out,
		"\tesac\n\t(( ${#plain} )) && compadd -a plain\n\t(( ${#items} )) && _describe cgn-ctl items\n"
		"\t[[ -n $files ]] && _files\n\treturn 0\n}\n"
		"if [[ $funcstack[1] == _cgn-ctl ]]; then _cgn_ctl \"$@\"; else compdef _cgn_ctl cgn-ctl; fi\n");
}

/* ---- fish ---- */

static void fish_text(struct cgn_buf *out, const char *z)
{
	put_single_quoted(out, z, "\\'");
}

static void fish_flags(const struct ctl_verb *v, struct cgn_buf *out)
{
	for (size_t i = 0; i < ctl_n_flags; i++) {
		const struct ctl_flag *f = &ctl_flags[i];
		enum value_kind kind = value_kind_of(f->meta);
		if (!ctl_flag_fits(f, v))
			continue;
		cgn_buf_fmt(out, "complete -c cgn-ctl -n '__cgn_ctl_is %s' %s %s", v->path,
			f->name[1] == '-' ? "-l" : "-s", f->name + (f->name[1] == '-' ? 2 : 1));
		if (kind == VALUE_CHOICE) {
			cgn_buf_putz(out, " -x -a '");
			put_choices(f->meta, out);
			cgn_buf_char(out, '\'');
		} else if (kind == VALUE_CONTEXT) {
			cgn_buf_putz(out, " -x -a '(__cgn_ctl_names context)'");
		} else {
			cgn_buf_putz(out, kind == VALUE_FILE ? " -r -F" : kind == VALUE_OTHER ? " -x" : "");
		}
		cgn_buf_putz(out, " -d ");
		fish_text(out, f->help);
		cgn_buf_char(out, '\n');
	}
}

static void fish_arguments(const struct ctl_verb *v, struct cgn_buf *out)
{
	enum value_kind kind = value_kind_of(v->arguments);
	const char *offer = takes_recipe(v) ? "-a '(__cgn_ctl_names recipe)'"
		: kind == VALUE_CONTEXT     ? "-a '(__cgn_ctl_names context)'"
		: kind == VALUE_FILE        ? "-F"
					    : NULL;
	if (offer != NULL)
		cgn_buf_fmt(out, "complete -c cgn-ctl -n '__cgn_ctl_is %s' %s\n", v->path, offer);
	if (kind != VALUE_CHOICE)
		return;
	cgn_buf_fmt(out, "complete -c cgn-ctl -n '__cgn_ctl_is %s' -a '", v->path);
	put_choices(v->arguments, out);
	cgn_buf_putz(out, "'\n");
}

static void complete_fish(struct cgn_buf *out)
{
	cgn_buf_putz(out,
		"# The words so far begin with these.\nfunction __cgn_ctl_is\n\tset -l words (commandline -opc)\n"
		"\tset -l n (math (count $argv) + 1)\n\ttest (count $words) -ge $n; and test \"$words[2..$n]\" = \"$argv\"\nend\n"
		"# The words so far are these.\nfunction __cgn_ctl_are\n\tset -l words (commandline -opc)\n"
		"\tset -e words[1]\n\ttest \"$words\" = \"$argv\"\nend\n"
		"function __cgn_ctl_names\n\tcgn-ctl $argv[1] ls 2>/dev/null | awk 'NR > 1 { print $1 }'\nend\n"
		"complete -c cgn-ctl -f\ncomplete -c cgn-ctl -n __cgn_ctl_are -a '");
	next_words(NULL, out);
	cgn_buf_putz(out, "'\n");
	for (size_t i = 0; i < ctl_n_verbs; i++) {
		const struct ctl_verb *v = &ctl_verbs[i];
		struct cgn_str rest = cgn_str_of(v->path), first = cgn_str_split(&rest, ' ');
		if (rest.p != NULL) {
			cgn_buf_fmt(out, "complete -c cgn-ctl -n '__cgn_ctl_are %.*s' -a %.*s -d ",
				CGN_STR_ARG(first), CGN_STR_ARG(rest));
			fish_text(out, v->summary);
			cgn_buf_char(out, '\n');
		}
		fish_flags(v, out);
		fish_arguments(v, out);
	}
}

CGN_RC ctl_completion(const struct ctl_args *a, struct cgn_err *err)
{
	static const struct {
		const char *shell;
		void (*print)(struct cgn_buf *out);
	} shells[] = {{"bash", complete_bash}, {"zsh", complete_zsh}, {"fish", complete_fish}};
	for (size_t i = 0; i < CGN_COUNT(shells); i++) {
		struct cgn_buf out = {0};
		if (strcmp(a->words[0], shells[i].shell) != 0)
			continue;
		shells[i].print(&out);
		return ctl_print(&out, err);
	}
	return CGN_FAIL(err, INVALID, "there is no completion for '%s', only for bash, zsh and fish",
		a->words[0]);
}
