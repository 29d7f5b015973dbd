-- Scheduling: where pg_cron lives in this database, it calls tick() so that sweeps go on when no
-- server process runs. `switchboard migrate` runs this last, as its own login: pg_cron never runs
-- a job of a role that cannot log in. Re-runnable: a job's name is its key.
-- Nothing is lost when no one ticks, it is only late.
do $cron$
declare
    v_version  int[];
    v_schedule text;
    v_job      record;
    v_command  constant text := 'select switchboard.tick()';
    v_cleaning constant text := $$delete from cron.job_run_details d using cron.job j
        where j.jobid = d.jobid and j.jobname like 'switchboard %' and d.start_time < now() - interval '1 day'$$;
begin
    select regexp_match(extversion, '^(\d+)\.(\d+)')::int[] into v_version from pg_catalog.pg_extension where extname = 'pg_cron';
    if not found then
        raise notice 'pg_cron is not in this database: the server process sweeps (switchboard serve), or call switchboard.tick() from a scheduler of yours';
        return;
    end if;
    v_schedule := case when v_version >= array[1, 5] then '30 seconds' else '* * * * *' end;
    if not has_schema_privilege('cron', 'usage') then
        raise warning 'pg_cron is here, but % may not use it; a superuser can run: grant usage on schema cron to %; then migrate again', current_user, quote_ident(current_user);
        return;
    end if;

    -- A job of ours under another login (an earlier migrator's) would run beside this one; harmless, but only a superuser can see and end it.
    for v_job in select jobid from cron.job where jobname in ('switchboard tick', 'switchboard clean') and database = current_database() and username <> current_user loop
        perform cron.unschedule(v_job.jobid);
    end loop;

    -- Seconds came with pg_cron 1.5. Scheduling anew also wakes a job that was switched off.
    if not exists (select from cron.job
                   where jobname = 'switchboard tick' and username = current_user and database = current_database() and active
                     and command = v_command and schedule = v_schedule) then
        perform cron.unschedule(jobid) from cron.job where jobname = 'switchboard tick' and username = current_user and database = current_database();
        perform cron.schedule('switchboard tick', v_schedule, v_command);
    end if;
    -- pg_cron keeps a row per run for ever: drop those of our jobs after a day.
    perform cron.schedule('switchboard clean', '17 * * * *', v_cleaning);
    raise notice 'pg_cron % calls tick() as %', array_to_string(v_version, '.'), current_user;
end
$cron$;
