/*-------------------------------------------------------------------------
 *
 * mip.h
 *	  What every part of the extension shares: its words, limits, errors.
 *
 * Words (docs/glossary.md has them for users):
 *	  site		one database taking part in a request
 *	  XID		the client's name for a request; XINST names one attempt
 *	  instance	one attempt <XID, XINST> at this site (a transaction)
 *	  family	all instances of one XID at this site; they are siblings
 *	  MIPT		the table of a family's prepared and committed instances
 *	  overlay	what an instance wrote over rows that a sibling has in use
 *	  link		one overlay entry: base version -> version of this instance
 *	  hand-over	writing the winner's links into the base versions' headers
 *	  outsider	any transaction that is not in the family
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_H
#define MIP_H

/* Longest XID in bytes; a gid (199 bytes at most) has to hold it too. */
#define MIP_XID_MAX		128

/*
 * Longest request and result. An escape in the detail of MP001 takes up to
 * six bytes, and a message to the client has to stay below 1 GB.
 */
#define MIP_TEXT_MAX	(100 * 1024 * 1024)
#define MIP_SITES_MAX	(1024 * 1024)

/*
 * SQLSTATEs of class MP: the contract with drivers and coordinators. A function
 * in SQL can raise them, too; what it cannot make up is the name of the C
 * function. So functions that raise one of them, other than NOT_USABLE, which
 * says nothing of a family, are called mip...
 */
#define ERRCODE_MIP_COMMITTED	MAKE_SQLSTATE('M','P','0','0','1')
#define ERRCODE_MIP_SUPERSEDED	MAKE_SQLSTATE('M','P','0','0','2')
#define ERRCODE_MIP_SITES		MAKE_SQLSTATE('M','P','0','0','3')
#define ERRCODE_MIP_DUPLICATE	MAKE_SQLSTATE('M','P','0','0','4')
#define ERRCODE_MIP_DOOMED		MAKE_SQLSTATE('M','P','0','0','5')
#define ERRCODE_MIP_NOT_USABLE	MAKE_SQLSTATE('M','P','0','0','6')
#define ERRCODE_MIP_EXPIRED		MAKE_SQLSTATE('M','P','0','0','7')

/* And of writesets */
#define ERRCODE_MIP_NO_ROW		MAKE_SQLSTATE('M','P','0','2','0')
#define ERRCODE_MIP_OTHER_TABLE MAKE_SQLSTATE('M','P','0','2','1')
#define ERRCODE_MIP_REWRITTEN	MAKE_SQLSTATE('M','P','0','2','2')
#define ERRCODE_MIP_ROLLED_BACK	MAKE_SQLSTATE('M','P','0','2','3')

/* And of replicated sites: this replica, or its log, is not what the others have */
#define ERRCODE_MIP_DIVERGED	MAKE_SQLSTATE('M','P','0','3','0')

#endif							/* MIP_H */
