-- plpgsql_check over every function: unknown names, wrong types, dead code, missing returns.
-- The extension is there on the PostgreSQL 15 of the tests and in the image, not on the embedded server.
select no_plan();

select exists (select from pg_extension where extname = 'plpgsql_check') as here \gset
\if :here
    -- Trigger functions are checked with the tables that they serve.
    create view test.checked as
        select p.oid::regprocedure as function, 0::oid as relation
        from pg_proc p where p.pronamespace = 'switchboard'::regnamespace and p.prolang = (select oid from pg_language where lanname = 'plpgsql') and p.prorettype <> 'trigger'::regtype
        union all
        select t.tgfoid::regprocedure, t.tgrelid from pg_trigger t join pg_proc p on p.oid = t.tgfoid
        where p.pronamespace = 'switchboard'::regnamespace and not t.tgisinternal;
    select cmp_ok((select count(*) from test.checked), '>', 20::bigint, 'there are functions to check');
    select is((select string_agg(format('%s:%s %s: %s %s', c.lineno, c.statement, c.level, c.message, c.detail), E'\n')
            from tap.plpgsql_check_function_tb(f.function, f.relation, performance_warnings => false, extra_warnings => true, security_warnings => true) c
            -- its false alarms: an untyped literal as a default, and what follows an endless loop
            where not (c.level = 'warning' and c.detail like 'cast "text" value to %') and not (c.level = 'warning extra' and c.message = 'unreachable code')
            -- a column of the answer that is called found hides the variable FOUND, which nobody misses where it is not read (since 2.8)
              and not (c.message = 'parameter "found" is shadowed' and (select p.prosrc !~* '\mfound\M' from pg_proc p where p.oid = f.function))), null, 'clean: ' || f.function)
        from test.checked f order by f.function::text;
\else
    select * from skip('plpgsql_check is not installed on this server', 1);
\endif

select * from finish();
