/*-------------------------------------------------------------------------
 *
 * clock.c
 *	  Literals that go by the clock.
 *
 * 'now' and its like become values where a statement is read, which each replica does by itself; what is
 * left of them afterwards is a constant. Of which type a literal will be is known to the expression only
 * that it is in, and types of dates may be within others. So it goes by its words, whatever it is for.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>

#include "nodes/value.h"
#include "parser/parser.h"
#include "parser/scanner.h"

#include "replication/clock.h"

static bool
is_of_word(char c)
{
	return isalnum((unsigned char) c) || c == '_' || IS_HIGHBIT_SET(c);
}

static bool
is_by_clock(const char *word, int length)
{
	static const char *const words[] = {
		"now", "today", "tomorrow", "yesterday"
	};

	for (int i = 0; i < lengthof(words); i++)
		if (strlen(words[i]) == length && pg_strncasecmp(word, words[i], length) == 0)
			return true;
	return false;
}

static bool
has_word_by_clock(const char *text)
{
	while (*text)
	{
		const char *end = text;

		while (is_of_word(*end))
			end++;
		if (is_by_clock(text, end - text))
			return true;
		text = *end ? end + 1 : end;
	}
	return false;
}

/* Does the token that begins here have its text from quotes? Identifiers have others, and parameters have digits. */
static bool
is_literal(const char *token)
{
	if ((token[0] == 'u' || token[0] == 'U') && token[1] == '&')
		return token[2] == '\'';
	if (token[0] == 'e' || token[0] == 'E')
		return token[1] == '\'';
	return token[0] == '\'' || (token[0] == '$' && !isdigit((unsigned char) token[1]));
}

/* The text of a function that is not parsed until it is executed */
static bool
is_body(const RawStmt *raw, const char *text)
{
	ListCell   *option;
	ListCell   *part;

	if (!IsA(raw->stmt, CreateFunctionStmt))
		return false;
	foreach(option, ((CreateFunctionStmt *) raw->stmt)->options)
	{
		const DefElem *def = lfirst_node(DefElem, option);

		if (strcmp(def->defname, "as") != 0)
			continue;
		foreach(part, (List *) def->arg)
		{
			if (strcmp(strVal(lfirst(part)), text) == 0)
				return true;
		}
	}
	return false;
}

static bool
has_no_expressions(const RawStmt *raw)
{
	switch (nodeTag(raw->stmt))
	{
		case T_AlterEnumStmt:
		case T_CommentStmt:
		case T_CreateEnumStmt:
		case T_CreateExtensionStmt:
		case T_SecLabelStmt:
			return true;
		default:
			return false;
	}
}

const char *
mip_literal_by_clock(const RawStmt *raw, const char *command)
{
	const char *begin = command + raw->stmt_location;
	char	   *statement = raw->stmt_len ? pnstrdup(begin, raw->stmt_len) : pstrdup(begin);
	core_yy_extra_type extra;
	core_YYSTYPE value;
	YYLTYPE		at;
	core_yyscan_t scanner;
	const char *found = NULL;

	if (has_no_expressions(raw))
		return NULL;
	scanner = scanner_init(statement, &extra, &ScanKeywords, ScanKeywordTokens);
	while (found == NULL && core_yylex(&value, &at, scanner) != 0)
		if (is_literal(statement + at) && has_word_by_clock(value.str) && !is_body(raw, value.str))
			found = pstrdup(value.str);
	scanner_finish(scanner);
	return found;
}
