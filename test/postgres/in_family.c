/*-------------------------------------------------------------------------
 *
 * in_family.c
 *	  Preloaded into isolationtester: every transaction block becomes a MIP
 *	  transaction, an instance of a family of its own.
 *
 * What a spec sends is looked through statement by statement. mip.begin goes
 * before the first statement of a transaction block that is not the session's
 * (so that snapshots are taken where they would be, and specs that use it
 * afterwards find it), in the same message (so that a spec sees it wait), and
 * mip.commit_one_phase takes the place of COMMIT.
 * Both are selected without columns, and such results are passed off as those
 * of a command: a spec's output shows nothing of it.
 *
 * With SIBLINGS in the environment it is not the only one: there are a prepared and an
 * active SERIALIZABLE sibling from before it begins until it has ended. They have changed
 * a row that is of no spec. So it ends with mip.prepare, and mip.commit follows.
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <libpq-fe.h>

#define MAX_SESSIONS 64
#define STARTS_WITH(stmt, word) \
	(strncasecmp(stmt, word, strlen(word)) == 0 && !isalnum((unsigned char) (stmt)[strlen(word)]))

typedef struct
{
	PGconn	   *conn;
	bool		joined;			/* its transaction is an instance */
	bool		begin_pending;	/* the next result is that of mip.begin */
	char		savepoint[64];	/* the outermost one */
	char		xid[128];
	PGconn	   *sibling;		/* that of its siblings */
	bool		has_siblings;
} Session;

static Session sessions[MAX_SESSIONS];

static Session *
session_of(PGconn *conn)
{
	for (int i = 0; i < MAX_SESSIONS; i++)
	{
		if (!sessions[i].conn)
			sessions[i].conn = conn;
		if (sessions[i].conn == conn)
			return &sessions[i];
	}
	abort();
}

/* ---- siblings ---- */

static bool within_libpq;

/* As the siblings' session; what it returns is good until the next one. */
static const char *
ask(Session *session, bool must, const char *format, ...)
{
	static char answer[64];
	char		sql[512];
	va_list		args;
	PGresult   *result;
	bool		good;

	va_start(args, format);
	vsnprintf(sql, sizeof(sql), format, args);
	va_end(args);
	within_libpq = true;
	result = ((PGresult *(*) (PGconn *, const char *)) dlsym(RTLD_NEXT, "PQexec")) (session->sibling, sql);
	within_libpq = false;
	good = *PQresultErrorMessage(result) == '\0';
	if (!good && must)
		printf("%s: %s", sql, PQresultErrorMessage(result));
	snprintf(answer, sizeof(answer), "%s", PQntuples(result) && PQnfields(result) ? PQgetvalue(result, 0, 0) : "");
	PQclear(result);
	return good ? answer : NULL;
}

static void
connect_sibling(Session *session)
{
	const char *const names[] = {"host", "port", "user", "dbname", NULL};
	const char *const values[] = {PQhost(session->conn), PQport(session->conn), PQuser(session->conn),
	PQdb(session->conn), NULL};

	within_libpq = true;
	session->sibling = PQconnectdbParams(names, values, 0);
	within_libpq = false;
	ask(session, true, "SET client_min_messages = warning; CREATE SCHEMA IF NOT EXISTS beside;"
		" CREATE TABLE IF NOT EXISTS beside.row (v int) USING mip");
}

static void
begin_siblings(Session *session)
{
	char		row[64];

	if (!session->sibling)
		connect_sibling(session);
	/* by its place: siblings of other families meet nowhere */
	snprintf(row, sizeof(row), "%s", ask(session, true, "INSERT INTO beside.row VALUES (0) RETURNING ctid"));
	for (int xinst = 1; xinst <= 3; xinst += 2)
	{
		ask(session, true, "BEGIN ISOLATION LEVEL SERIALIZABLE");
		ask(session, true, "SELECT FROM mip.begin('%s', %d)", session->xid, xinst);
		ask(session, true, "UPDATE beside.row SET v = %d WHERE ctid = '%s'", xinst, row);
		if (xinst == 1)
			ask(session, true, "SELECT FROM mip.prepare('', '')");
	}
	session->has_siblings = true;
}

/* Once its transaction is over: it has won if it is prepared. */
static void
end_siblings(Session *session)
{
	if (!session->has_siblings || PQtransactionStatus(session->conn) != PQTRANS_IDLE)
		return;
	session->has_siblings = false;
	ask(session, true, "ROLLBACK");
	if (!ask(session, false, "SELECT FROM mip.commit('%s', 2)", session->xid))
		ask(session, true, "SELECT FROM mip.rollback('%s', 1)", session->xid);
}

/* ---- statements ---- */

static const char *
skip_blanks(const char *p)
{
	for (;;)
	{
		while (isspace((unsigned char) *p))
			p++;
		if (p[0] != '-' || p[1] != '-')
			return p;
		p += strcspn(p, "\n");
	}
}

/* The end of what starts at `p`: a quoted thing, a comment, or one character. */
static const char *
skip_token(const char *p)
{
	const char *end;

	if (*p == '\'' || *p == '"')
		end = strchr(p + 1, *p);
	else if (p[0] == '-' && p[1] == '-')
		return p + strcspn(p, "\n");
	else if (*p == '$')
	{
		size_t		tag = strspn(p + 1, "abcdefghijklmnopqrstuvwxyz_") + 2;
		char		quote[64];

		if (p[tag - 1] != '$' || tag >= sizeof(quote))
			return p + 1;
		snprintf(quote, sizeof(quote), "%.*s", (int) tag, p);
		end = strstr(p + tag, quote);
		return end ? end + tag : p + strlen(p);
	}
	else
		return p + 1;
	return end ? end + 1 : p + strlen(p);
}

/* The semicolon that ends the statement at `p`, or the end of the string. */
static const char *
end_of(const char *p)
{
	while (*p && *p != ';')
		p = skip_token(p);
	return p;
}

static void
put_begin(FILE *out, Session *session)
{
	static int	counter;
	const char *spec = getenv("PGAPPNAME");

	snprintf(session->xid, sizeof(session->xid), "%.80s %d %d",
			 spec ? spec : "", (int) getpid(), ++counter);
	if (getenv("SIBLINGS"))
		begin_siblings(session);
	fprintf(out, "SELECT FROM mip.begin('%s', 2); ", session->xid);
}

/* SAVEPOINT and RELEASE: what would have to be released before the end */
static void
note_savepoint(Session *session, const char *stmt)
{
	char		name[64];

	if (sscanf(stmt, "%*s %63[^; ]", name) != 1)
		return;
	if (STARTS_WITH(stmt, "savepoint") && !session->savepoint[0])
		strcpy(session->savepoint, name);
	else if (STARTS_WITH(stmt, "release") && strcasecmp(name, session->savepoint) == 0)
		session->savepoint[0] = '\0';
}

static void
put_commit(FILE *out, Session *session)
{
	if (session->savepoint[0])
		fprintf(out, "RELEASE %s; ", session->savepoint);
	fprintf(out, "SELECT FROM mip.%s('', '')",
			session->has_siblings ? "prepare" : "commit_one_phase");
}

/* What outlasts a transaction, but not an instance. (SET takes no snapshot, either.) */
static bool
is_of_session(const char *stmt)
{
	return STARTS_WITH(stmt, "set") || STARTS_WITH(stmt, "prepare") ||
		STARTS_WITH(stmt, "select pg_advisory_lock");
}

/* `sql` as sent inside a family; to be freed. */
static char *
rewrite(PGconn *conn, const char *sql)
{
	Session    *session = session_of(conn);
	PGTransactionStatusType status = PQtransactionStatus(conn);
	bool		failed = status == PQTRANS_INERROR;
	bool		in_block = failed || status == PQTRANS_INTRANS;
	char	   *text;
	size_t		size;
	FILE	   *out = open_memstream(&text, &size);

	if (!in_block)
		session->joined = false;
	session->begin_pending = false;
	for (const char *p = skip_blanks(sql); *p;)
	{
		const char *end = end_of(p);
		const char *next = skip_blanks(*end ? end + 1 : end);
		bool		begin = STARTS_WITH(p, "begin") || STARTS_WITH(p, "start");
		bool		commit = STARTS_WITH(p, "commit") || STARTS_WITH(p, "end");
		bool		rollback = STARTS_WITH(p, "abort") ||
			(STARTS_WITH(p, "rollback") && !strcasestr(p, "to "));

		if (commit && session->joined && !failed && !*next)
		{
			put_commit(out, session);
			break;
		}
		if (begin || commit || rollback)
		{
			in_block = begin;
			session->joined = failed = false;
			session->savepoint[0] = '\0';
		}
		else if (in_block && !session->joined && !failed && !is_of_session(p))
		{
			session->begin_pending = ftell(out) == 0;
			put_begin(out, session);
			session->joined = true;
		}
		note_savepoint(session, p);
		fprintf(out, "%.*s;", (int) (end - p), p);
		p = next;
	}
	fclose(out);
	return text;
}

/* ---- what isolationtester calls ---- */

int
PQsendQuery(PGconn *conn, const char *query)
{
	int			(*real) (PGconn *, const char *) = dlsym(RTLD_NEXT, "PQsendQuery");
	char	   *text;
	int			result;

	if (within_libpq)
		return real(conn, query);
	text = rewrite(conn, query);
	result = real(conn, text);
	free(text);
	return result;
}

PGresult *
PQexec(PGconn *conn, const char *query)
{
	PGresult   *(*real) (PGconn *, const char *) = dlsym(RTLD_NEXT, "PQexec");
	char	   *text = rewrite(conn, query);
	PGresult   *result;

	session_of(conn)->begin_pending = false;
	within_libpq = true;
	result = real(conn, text);
	within_libpq = false;
	free(text);
	end_siblings(session_of(conn));
	return result;
}

/* A step is over when nothing comes any more. */
PGresult *
PQgetResult(PGconn *conn)
{
	PGresult   *(*real) (PGconn *) = dlsym(RTLD_NEXT, "PQgetResult");
	PGresult   *result = real(conn);

	if (!within_libpq && result == NULL)
		end_siblings(session_of(conn));
	return result;
}

/* A step has not answered before something of its own has come. */
int
PQisBusy(PGconn *conn)
{
	int			(*real) (PGconn *) = dlsym(RTLD_NEXT, "PQisBusy");
	Session    *session = session_of(conn);

	if (!within_libpq && session->begin_pending && !real(conn))
	{
		PGresult   *begun = PQgetResult(conn);

		session->begin_pending = false;
		if (PQresultStatus(begun) != PGRES_COMMAND_OK)
			printf("mip.begin failed: %s", PQresultErrorMessage(begun));
		PQclear(begun);
	}
	return real(conn);
}

ExecStatusType
PQresultStatus(const PGresult *res)
{
	ExecStatusType (*real) (const PGresult *) = dlsym(RTLD_NEXT, "PQresultStatus");
	ExecStatusType status = real(res);

	return status == PGRES_TUPLES_OK && PQnfields(res) == 0 ? PGRES_COMMAND_OK : status;
}
